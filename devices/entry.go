package devices

import (
	"encoding/json"
	"strconv"
	"time"
)

// maxInteger is the largest task id and fencing token, because every JSON library represents integers up to maxInteger exactly.
const maxInteger = 1<<53 - 1

// decodeResult decodes an entry of the list results. entry is nil if the received entry is not a JSON object.
func decodeResult(entry members) (result Result) {
	if entry == nil {
		return Result{Invalid: CodeNotAnObject}
	}
	result.Task, result.Token, result.Invalid = decodeTaskToken(entry)
	result.decodeStatus(entry.removeMember("status"))
	result.decodeOutput(entry.removeMember("output"))
	result.decodeError(entry.removeMember("error"))
	result.decodeRetryAfter(entry.removeMember("retry_after_ms"))
	return result
}

// NewResult returns a result that was not decoded from an entry of the list results, with the limits of such an entry. If output is nil, the
// result has no output.
func NewResult(task, token int64, status Status, output json.RawMessage, errorText string) Result {
	result := Result{Task: task, Token: token, Status: status, Error: truncateText(errorText, MaxError)}
	result.decodeOutput(output)
	return result
}

// decodeRunning decodes an entry of the list running. entry is nil if the received entry is not a JSON object. An invalid progress is
// ignored, because the progress is only displayed and must not cost a device its lease.
func decodeRunning(entry members) (running Running) {
	if entry == nil {
		return Running{Invalid: CodeNotAnObject}
	}
	running.Task, running.Token, running.Invalid = decodeTaskToken(entry)
	if n, err := strconv.ParseFloat(string(entry.removeMember("progress")), 64); err == nil && 0 < n && n <= 1 {
		running.Progress = n
	}
	return running
}

// decodeTaskToken decodes the task and the token of an entry. If a number cannot be decoded, it becomes 0, and invalid is the code of the
// first such number. Otherwise invalid is empty.
func decodeTaskToken(entry members) (task, token int64, invalid string) {
	task, token = decodeInteger(entry.removeMember("task")), decodeInteger(entry.removeMember("token"))
	switch {
	case task == 0:
		invalid = CodeInvalidTask
	case token == 0:
		invalid = CodeInvalidToken
	}
	return task, token, invalid
}

// decodeInteger returns the positive integer below 2^53 in raw, or 0.
func decodeInteger(raw []byte) int64 {
	n, err := strconv.ParseInt(integerDigits(raw), 10, 64)
	if err != nil || n > maxInteger {
		return 0
	}
	return n
}

// integerDigits returns the digits of the non-negative integer in raw, which is a JSON number or a JSON string. For any other value, or with
// leading zeros, it returns "".
func integerDigits(raw []byte) string {
	if isEmptyJSON(raw) {
		return ""
	}
	text, ok := parseString(raw)
	if !ok {
		text = string(raw)
	}
	if text == "" || text[0] == '0' && text != "0" {
		return ""
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return ""
		}
	}
	return text
}

func (r *Result) decodeStatus(raw []byte) {
	text, _ := parseString(raw)
	switch status := Status(text); status {
	case StatusSucceeded, StatusFailed, StatusRejected, StatusReturned:
		r.Status = status
	default:
		r.markInvalid(CodeInvalidStatus)
	}
}

func (r *Result) decodeOutput(raw []byte) {
	switch {
	case len(raw) == 0 || string(raw) == "null":
	case len(raw) > MaxOutput:
		r.OutputDropped = true
	default:
		r.Output = json.RawMessage(raw)
	}
}

func (r *Result) decodeError(raw []byte) {
	if isEmptyJSON(raw) {
		return
	}
	text, ok := parseString(raw)
	if !ok {
		r.markInvalid(CodeInvalidError)
		return
	}
	r.Error = truncateText(text, MaxError)
}

// decodeRetryAfter sets RetryAfter from raw. It ignores raw unless the status is StatusReturned, so that the field does not make another
// result invalid.
func (r *Result) decodeRetryAfter(raw []byte) {
	if r.Status != StatusReturned || isEmptyJSON(raw) {
		return
	}
	text := integerDigits(raw)
	if text == "" {
		r.markInvalid(CodeInvalidRetryAfter)
		return
	}
	r.RetryAfter = MaxRetryAfter // also for a number that does not fit into int64
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms < MaxRetryAfter.Milliseconds() {
		r.RetryAfter = time.Duration(ms) * time.Millisecond
	}
}

// markInvalid marks the entry as invalid with code. If the entry already has a code, that code stays.
func (r *Result) markInvalid(code string) {
	if r.Invalid == "" {
		r.Invalid = code
	}
}

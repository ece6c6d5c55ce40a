package devices

import (
	"encoding/json"
	"strconv"
	"time"
)

// maxInteger bounds tasks and tokens: what every JSON library keeps exactly.
const maxInteger = 1<<53 - 1

// decodeResult decodes an entry of results and counts its unknown fields.
func decodeResult(entry []byte) (result Result, unknown int) {
	if !isObject(entry) {
		return Result{Invalid: CodeNotAnObject}, 0
	}
	var task, token, status, output, text, retryAfter []byte
	for key, value := range members(entry) {
		switch string(key) {
		case "task":
			task = value
		case "token":
			token = value
		case "status":
			status = value
		case "output":
			output = value
		case "error":
			text = value
		case "retry_after_ms":
			retryAfter = value
		default:
			unknown++
		}
	}
	result.Task, result.Token, result.Invalid = decodeNames(task, token)
	result.decodeStatus(status)
	result.decodeOutput(output)
	result.decodeError(text)
	result.decodeRetryAfter(retryAfter)
	return result, unknown
}

// decodeRunning decodes an entry of running and counts its unknown fields. A
// progress that is not a number from 0 to 1 is ignored: what is only for
// display never costs a device its lease.
func decodeRunning(entry []byte) (running Running, unknown int) {
	if !isObject(entry) {
		return Running{Invalid: CodeNotAnObject}, 0
	}
	var task, token, progress []byte
	for key, value := range members(entry) {
		switch string(key) {
		case "task":
			task = value
		case "token":
			token = value
		case "progress":
			progress = value
		default:
			unknown++
		}
	}
	running.Task, running.Token, running.Invalid = decodeNames(task, token)
	if n, err := strconv.ParseFloat(string(progress), 64); err == nil && 0 < n && n <= 1 {
		running.Progress = n
	}
	return running, unknown
}

// decodeNames decodes the task and token of an entry; an unreadable one is 0.
func decodeNames(taskField, tokenField []byte) (task, token int64, invalid string) {
	task, token = decodeInteger(taskField), decodeInteger(tokenField)
	switch {
	case task == 0:
		invalid = CodeInvalidTask
	case token == 0:
		invalid = CodeInvalidToken
	}
	return task, token, invalid
}

// decodeInteger returns a positive integer below 2^53, or 0.
func decodeInteger(field []byte) int64 {
	n, err := strconv.ParseInt(digits(field), 10, 64)
	if err != nil || n > maxInteger {
		return 0
	}
	return n
}

// digits returns the digits of a plain integer from 0, sent as a number or as
// a string in the same spelling; "" if it is none.
func digits(field []byte) string {
	if isEmpty(field) {
		return ""
	}
	text := string(field)
	if isString(field) {
		text = unquote(field)
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

func (r *Result) decodeStatus(field []byte) {
	if !isEmpty(field) && isString(field) {
		switch status := Status(unquote(field)); status {
		case StatusSucceeded, StatusFailed, StatusRejected, StatusReturned:
			r.Status = status
			return
		}
	}
	r.invalid(CodeInvalidStatus)
}

func (r *Result) decodeOutput(field []byte) {
	switch {
	case len(field) == 0 || string(field) == "null":
	case len(field) > MaxOutput:
		r.OutputDropped = true
	default:
		r.Output = json.RawMessage(field)
	}
}

func (r *Result) decodeError(field []byte) {
	switch {
	case isEmpty(field):
	case isString(field):
		r.Error = cutText(unquote(field), MaxError)
	default:
		r.invalid(CodeInvalidError)
	}
}

// decodeRetryAfter reads the field only of a task that is returned, so that a
// stray one never costs a result.
func (r *Result) decodeRetryAfter(field []byte) {
	if r.Status != StatusReturned || isEmpty(field) {
		return
	}
	text := digits(field)
	if text == "" {
		r.invalid(CodeInvalidRetryAfter)
		return
	}
	r.RetryAfter = MaxRetryAfter // also of what no integer holds
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms < MaxRetryAfter.Milliseconds() {
		r.RetryAfter = time.Duration(ms) * time.Millisecond
	}
}

// invalid marks a bad entry; the first code found stays.
func (r *Result) invalid(code string) {
	if r.Invalid == "" {
		r.Invalid = code
	}
}

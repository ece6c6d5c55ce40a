package devices

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func FuzzDecodeReport(f *testing.F) {
	entry := func(fields string) string {
		return `{"results":[{"task":1,"token":2,"status":"returned",` + fields + `}],"running":[{"task":"3","token":4,"progress":0.5}]}`
	}
	for _, seed := range []string{
		"", "null", "{}", "[]", "7", "{", `{"id":"b7-17","accept":false,"attributes":{"a":null,"b":{"c":[]}}}`,
		`{"id":5}`, `{"results":{},"running":7}`, `{"results":[1,null,{}, {"task":-1}]}`, `{"results":[{"task":1e400,"token":1.5}]}`,
		entry(`"output":{"a":1e400},"error":"x","retry_after_ms":-5`), entry(`"output":"` + "\xff\xfe\x00" + `"`),
		entry(`"error":"\u0000\ud800 \ud83d\ude00 \udc00"`), entry(`"output":"\ud800\u0041\\u0000\""`), entry(`"retry_after_ms":"99999999999999999999"`),
		entry(`"output":` + strings.Repeat("[", 13) + strings.Repeat("]", 13)), strings.Repeat(`{"a":`, 20),
		`{"id":"\u00zz"}`, `{"id":"\`, `{"\u0069d":"x","id":null}`, `{"a" : [ 1 , "]" , {"b" : "}"} ] , "id" : "x" }`,
		`{"id":"../+#/` + strings.Repeat("x", 200) + `"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := bytes.Clone(body)
		report, err := DecodeReport(body)
		if !bytes.Equal(sent, body) {
			t.Fatal("the body was written to")
		}
		if err != nil {
			checkRefusal(t, body, err)
			return
		}
		checkReport(t, report)
		encoded := encodeReport(report)
		if len(encoded) > MaxBody || slices.ContainsFunc(report.Results, func(r Result) bool { return r.OutputDropped }) {
			return // The report cannot be encoded again within the limits.
		}
		again, err := DecodeReport(encoded)
		if err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		again.UnknownFields = report.UnknownFields
		if diff := cmp.Diff(report, again); diff != "" {
			t.Errorf("-first +again:\n%s", diff)
		}
	})
}

// checkRefusal checks the error for a refused report: it has a reason, a code and a detail. Valid JSON must not be
// refused as invalid JSON.
func checkRefusal(t *testing.T, body []byte, err error) {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) || refused.Code == "" || refused.Detail == "" || refused.Reason == "" {
		t.Fatalf("error %#v", err)
	}
	if refused.Code == CodeInvalidJSON && json.Valid(body) {
		t.Fatal("valid JSON refused")
	}
}

// checkReport checks that a decoded report is within the limits, and that a result without an error code is
// complete.
func checkReport(t *testing.T, report Report) {
	t.Helper()
	texts := []json.RawMessage{report.Attributes}
	for _, result := range report.Results {
		texts = append(texts, result.Output)
		if len(result.Error) > MaxError || !utf8.ValidString(result.Error) || strings.ContainsRune(result.Error, 0) {
			t.Errorf("error text %q", result.Error)
		}
		if result.RetryAfter < 0 || result.RetryAfter > MaxRetryAfter {
			t.Errorf("retry after %s", result.RetryAfter)
		}
		if result.Invalid == "" && (result.Task <= 0 || result.Token <= 0 || result.Status == "") {
			t.Errorf("incomplete %+v", result)
		}
	}
	for _, text := range texts {
		checkStoredJSON(t, text)
	}
	if !utf8.ValidString(report.ID) || utf8.RuneCountInString(report.ID) > MaxReportID || strings.ContainsRune(report.ID, 0) {
		t.Errorf("id %q", report.ID)
	}
}

// checkStoredJSON checks JSON from a report that will be stored: it is valid JSON and valid UTF-8, without U+0000
// and without lone surrogates.
func checkStoredJSON(t *testing.T, text json.RawMessage) {
	t.Helper()
	if text == nil {
		return
	}
	if !json.Valid(text) || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 || &replaceUnstorable(text)[0] != &text[0] {
		t.Errorf("kept %q", text)
	}
}

// encodeReport encodes a report as a device would. It copies the raw JSON in the report unchanged.
func encodeReport(report Report) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `{"id":%s,"accept":%t,"attributes":%s,"results":[`, quote(report.ID), report.Accept, orNull(report.Attributes))
	for i, r := range report.Results {
		out.WriteString(strings.Repeat(",", min(i, 1)))
		text, retryAfter := quote(r.Error), r.RetryAfter.Milliseconds()
		switch r.Invalid {
		case CodeNotAnObject:
			out.WriteString("0")
			continue
		case CodeInvalidError:
			text = []byte("5")
		case CodeInvalidRetryAfter:
			retryAfter = -1
		}
		fmt.Fprintf(&out, `{"task":%d,"token":"%d","status":%s,"output":%s,"error":%s,"retry_after_ms":%d}`,
			r.Task, r.Token, quote(string(r.Status)), orNull(r.Output), text, retryAfter)
	}
	out.WriteString(`],"running":[`)
	for i, r := range report.Running {
		out.WriteString(strings.Repeat(",", min(i, 1)))
		if r.Invalid == CodeNotAnObject {
			out.WriteString("0")
			continue
		}
		fmt.Fprintf(&out, `{"task":"%d","token":%d,"progress":%g}`, r.Task, r.Token, r.Progress)
	}
	out.WriteString("]}")
	return out.Bytes()
}

func quote(s string) []byte {
	text, _ := json.Marshal(s)
	return text
}

func orNull(text json.RawMessage) []byte {
	if text == nil {
		return []byte("null")
	}
	return text
}

func FuzzParseReportTopic(f *testing.F) {
	for _, seed := range []string{
		"fleet/v1/a:1/report", "fleet/v1//report", "fleet/v1/+/report", "fleet/v1/#", "fleet/v1/../report", "fleet/v1/a/b/report",
		"fleet/v1/report", "$share/g/fleet/v1/a/report", "fleet/v1/" + strings.Repeat("x", 200) + "/report", "fleet/v1/\x00/report",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, topic string) {
		id, err := ParseReportTopic(topic)
		if err != nil {
			if id != "" {
				t.Errorf("id %q with %v", id, err)
			}
			return
		}
		if ReportTopic(id) != topic {
			t.Errorf("%q is the topic of %q", topic, id)
		}
		if _, err := ParseID(string(id)); err != nil {
			t.Error(err)
		}
	})
}

func FuzzParseID(f *testing.F) {
	for _, seed := range []string{"a", "00:1A:2b", "..", "a/b", "+", "#", "", "-1", "é", "a\x00", strings.Repeat("x", 128), strings.Repeat("x", 200)} {
		f.Add(seed)
	}
	rule := regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]*\z`)
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if (err == nil) != (rule.MatchString(s) && len(s) <= 128) {
			t.Errorf("ParseID(%q) = %q, %v", s, id, err)
		}
		if err == nil && string(id) != s {
			t.Errorf("ParseID(%q) = %q", s, id)
		}
		if (CheckPoolName(s) == nil) != (rule.MatchString(s) && len(s) <= 64) {
			t.Errorf("ParsePool(%q)", s)
		}
	})
}

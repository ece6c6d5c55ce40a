package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestPayloadsMergeAsRFC7396Says checks how the payload of a task is merged into the shared payload of its batch:
// the cases of RFC 7396, appendix A, in which the shared payload is an object, and further payloads.
func TestPayloadsMergeAsRFC7396Says(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ shared, own, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":1}`, `[1,null]`, `[1,null]`},
		{`{"n":12345678901234567890.10,"a":{"x":1e400}}`, `{"a":{"y":0.10}}`, `{"a":{"x":1e400,"y":0.10},"n":12345678901234567890.10}`},
		{``, `{"a":null}`, `{"a":null}`},
		{`null`, `{"a":null}`, `{"a":null}`},
		{`["a"]`, `{"a":null}`, `{"a":null}`},
		{`{"a":1}`, ``, ``},
	} {
		shared := newPayloadMerger(json.RawMessage(c.shared))
		for range 2 { // the first task must not change the shared payload
			if got := shared.mergePayload(json.RawMessage(c.own)); string(got) != c.want {
				t.Errorf("%s over %s: %s, want %s", c.own, c.shared, got, c.want)
			}
		}
	}
}

func FuzzOverlay(f *testing.F) {
	f.Add(`{"a":{"b":1}}`, `{"a":{"b":null,"c":[{}]}}`)
	f.Fuzz(func(t *testing.T, shared, own string) {
		if !json.Valid([]byte(shared)) || !json.Valid([]byte(own)) {
			return
		}
		got := newPayloadMerger(json.RawMessage(shared)).mergePayload(json.RawMessage(own))
		if !json.Valid(got) {
			t.Fatalf("%s over %s: %s", own, shared, got)
		}
		if again := newPayloadMerger(got).mergePayload(json.RawMessage(own)); !bytes.Equal(compactJSON(again), compactJSON(got)) {
			t.Errorf("%s over %s: %s, and once more: %s", own, shared, got, again)
		}
	})
}

func compactJSON(text []byte) []byte {
	var out bytes.Buffer
	_ = json.Compact(&out, text)
	return []byte(strings.TrimSpace(out.String()))
}

package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// windowJSON returns the JSON of a daily window that opened hoursAgo hours ago and is open for hoursOpen hours.
func windowJSON(hoursAgo, hoursOpen int) string {
	from := time.Now().UTC().Add(time.Duration(-hoursAgo) * time.Hour)
	return fmt.Sprintf(`{"cron":"%d %d * * *","duration":"%dh"}`, from.Minute(), from.Hour(), hoursOpen)
}

func TestWindowsOfBatchesAndPools(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60,"lease_ms":60000}`)
		id := b.CreateBatch(`{"pool":"p","devices":["d-1"],"windows":[` + windowJSON(5, 2) + `]}`)
		path := fmt.Sprintf("/v1/batches/%d", id)
		reason := func() string {
			b.Helper()
			var reply deviceReply
			b.SendReport("d-1", `{"id":"x","accept":true}`).Expect(200).Decode(&reply)
			return reply.Reason
		}
		shown := b.Get(path).Expect(200).Object()
		window := asObject(listField(shown, "windows")[0])
		if shown["finish_inside"] != true || window["timezone"] != "UTC" || window["duration"] != "2h" || shown["opens_at"] == nil || shown["closes_at"] == nil || shown["eta"] != nil {
			b.Errorf("shown as %v", shown)
		}
		if got := reason(); got != "window" {
			b.Errorf("reason %s in a closed window", got)
		}
		b.Call("PATCH", path, adminToken, `{"priority":1}`).Expect(200)
		if kept := b.Get(path).Object(); !cmp.Equal(kept["windows"], shown["windows"]) || !cmp.Equal(kept["opens_at"], shown["opens_at"]) {
			b.Errorf("a patch without windows changed them: %v", kept)
		}
		b.PutPool("p", `{"capacity":60,"lease_ms":60000,"windows":[`+windowJSON(5, 2)+`]}`)
		pasted := b.Get("/v1/pools/p").Expect(200)
		if again := b.Call("PUT", "/v1/pools/p", adminToken, string(pasted.Body)).Expect(200); !cmp.Equal(again.Object(), pasted.Object()) {
			b.Errorf("pasting a pool changed it: %s", cmp.Diff(pasted.Object(), again.Object()))
		}
		if open := b.Call("PATCH", path, adminToken, `{"windows":[`+windowJSON(1, 3)+`,`+windowJSON(5, 1)+`]}`).Expect(200).Object(); len(listField(open, "windows")) != 2 {
			b.Errorf("patched to %v", open)
		}
		if got := reason(); got != "window" {
			b.Errorf("reason %s while the pool's window is closed", got)
		}
		if open := b.Call("PATCH", "/v1/pools/p", adminToken, `{"windows":null}`).Expect(200).Object(); len(listField(open, "windows")) != 0 || open["opens_at"] != nil {
			b.Errorf("patched to %v", open)
		}
		if got := reason(); got != "granted" {
			b.Errorf("reason %s with both open", got)
		}
		if open := b.Call("PATCH", path, adminToken, `{"windows":[]}`).Expect(200).Object(); len(listField(open, "windows")) != 0 || open["opens_at"] != nil {
			b.Errorf("patched to %v", open)
		}
	})
}

func TestWindowsAreChecked(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60,"lease_ms":7200000}`)
	id := b.CreateBatch(newBatchBody)
	b.PutPool("brief", `{"capacity":60,"lease_ms":7200000,"windows":[{"cron":"0 1 * * *","duration":"1h"}]}`)
	for window, names := range map[string]string{
		`{"cron":"TZ=UTC","duration":"3h"}`:                       "windows[0].cron",
		`{"cron":"CRON_TZ=UTC 0 1 * * *","duration":"3h"}`:        "windows[0].cron",
		`{"cron":"@every 1h","duration":"3h"}`:                    "windows[0].cron",
		`{"cron":"0 0 31 2 *","duration":"3h"}`:                   "windows[0].cron",
		`{"cron":"0 1 * * *","duration":"10s"}`:                   "windows[0].duration",
		`{"cron":"0 1 * * *","duration":"3h","timezone":"Local"}`: "windows[0].timezone",
		`{"cron":"0 1 * * *"}`:                                    "duration",
		`{"cron":"0 1 * * *","duration":10800000}`:                "duration",
		strings.Repeat(`{"cron":"0 1 * * *","duration":"3h"},`, 16) + `{"cron":"0 1 * * *","duration":"3h"}`: "at most 16",
	} {
		body := `"windows":[` + window + `]}`
		b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["a"],`+body).ExpectProblem(422, "invalid_field", names)
		b.Call("PUT", "/v1/pools/p", adminToken, `{"capacity":60,`+body).ExpectProblem(422, "invalid_field", names)
		b.Call("PATCH", "/v1/pools/p", adminToken, `{`+body).ExpectProblem(422, "invalid_field", names)
		b.Call("PATCH", fmt.Sprintf("/v1/batches/%d", id), adminToken, `{`+body).ExpectProblem(422, "invalid_field", names)
	}
	// A lease of two hours can never end within a window of one hour, so such a batch is refused.
	const hour = `"windows":[{"cron":"0 1 * * *","duration":"1h"}]}`
	for _, test := range []struct {
		body   string
		status int
	}{
		{`{"pool":"p","devices":["a"],` + hour, 422},
		{`{"pool":"p","devices":["a"],"finish_inside":false,` + hour, 201},
		{`{"pool":"p","devices":["a"],"lease_ms":1800000,` + hour, 201},
		{`{"pool":"p","devices":["a"],"windows":[{"cron":"0 1 * * *","duration":"1h"},{"cron":"0 2 * * *","duration":"90m"}]}`, 201}, // adjacent windows
		{`{"pool":"brief","devices":["a"]}`, 422},
		{`{"pool":"brief","devices":["a"],"lease_ms":1800000}`, 201},
		{`{"pool":"nowhere","devices":["a"],` + hour, 422},
	} {
		b.Call("POST", "/v1/batches", adminToken, test.body).Expect(test.status)
	}
	b.Call("PATCH", fmt.Sprintf("/v1/batches/%d", id), adminToken, `{`+hour).ExpectProblem(422, "invalid_field", "finish_inside", "lease_ms")
}

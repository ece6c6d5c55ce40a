package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// hours returns a window in JSON that opened some hours before now and has this length.
func hours(before, length int) string {
	from := time.Now().UTC().Add(time.Duration(-before) * time.Hour)
	return fmt.Sprintf(`{"cron":"%d %d * * *","duration":"%dh"}`, from.Minute(), from.Hour(), length)
}

func TestWindowsOfBatchesAndPools(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":60,"lease_ms":60000}`)
		id := b.batch(`{"pool":"p","devices":["d-1"],"windows":[` + hours(5, 2) + `]}`)
		path := fmt.Sprintf("/v1/batches/%d", id)
		reason := func() string {
			b.Helper()
			var reply reply
			b.report("d-1", `{"id":"x","accept":true}`).must(200).into(&reply)
			return reply.Reason
		}
		shown := b.get(path).must(200).fields()
		window := object(list(shown, "windows")[0])
		if shown["finish_inside"] != true || window["timezone"] != "UTC" || window["duration"] != "2h" || shown["opens_at"] == nil || shown["closes_at"] == nil || shown["eta"] != nil {
			b.Errorf("shown as %v", shown)
		}
		if got := reason(); got != "window" {
			b.Errorf("reason %s in a closed window", got)
		}
		b.call("PATCH", path, adminToken, `{"priority":1}`).must(200)
		if kept := b.get(path).fields(); !cmp.Equal(kept["windows"], shown["windows"]) || !cmp.Equal(kept["opens_at"], shown["opens_at"]) {
			b.Errorf("a patch without windows changed them: %v", kept)
		}
		b.pool("p", `{"capacity":60,"lease_ms":60000,"windows":[`+hours(5, 2)+`]}`)
		pasted := b.get("/v1/pools/p").must(200)
		if again := b.call("PUT", "/v1/pools/p", adminToken, string(pasted.body)).must(200); !cmp.Equal(again.fields(), pasted.fields()) {
			b.Errorf("pasting a pool changed it: %s", cmp.Diff(pasted.fields(), again.fields()))
		}
		if open := b.call("PATCH", path, adminToken, `{"windows":[`+hours(1, 3)+`,`+hours(5, 1)+`]}`).must(200).fields(); len(list(open, "windows")) != 2 {
			b.Errorf("patched to %v", open)
		}
		if got := reason(); got != "window" {
			b.Errorf("reason %s while the pool's window is closed", got)
		}
		if open := b.call("PATCH", "/v1/pools/p", adminToken, `{"windows":null}`).must(200).fields(); len(list(open, "windows")) != 0 || open["opens_at"] != nil {
			b.Errorf("patched to %v", open)
		}
		if got := reason(); got != "granted" {
			b.Errorf("reason %s with both open", got)
		}
		if open := b.call("PATCH", path, adminToken, `{"windows":[]}`).must(200).fields(); len(list(open, "windows")) != 0 || open["opens_at"] != nil {
			b.Errorf("patched to %v", open)
		}
	})
}

func TestWindowsAreChecked(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":60,"lease_ms":7200000}`)
	id := b.batch(newFields)
	b.pool("brief", `{"capacity":60,"lease_ms":7200000,"windows":[{"cron":"0 1 * * *","duration":"1h"}]}`)
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
		b.call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["a"],`+body).problem(422, "invalid_field").names(t, names)
		b.call("PUT", "/v1/pools/p", adminToken, `{"capacity":60,`+body).problem(422, "invalid_field").names(t, names)
		b.call("PATCH", "/v1/pools/p", adminToken, `{`+body).problem(422, "invalid_field").names(t, names)
		b.call("PATCH", fmt.Sprintf("/v1/batches/%d", id), adminToken, `{`+body).problem(422, "invalid_field").names(t, names)
	}
	// A lease of two hours never ends within a window of one hour.
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
		b.call("POST", "/v1/batches", adminToken, test.body).must(test.status)
	}
	b.call("PATCH", fmt.Sprintf("/v1/batches/%d", id), adminToken, `{`+hour).problem(422, "invalid_field").names(t, "finish_inside", "lease_ms")
}

package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func TestPatchMergesTags(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.call("POST", "/v1/devices", adminToken, `{"id":"d","tags":{"area":"330100","model":"x"}}`).must(201)
		b.report("d", `{"attributes":{"firmware":"7.2"}}`).must(200)
		patch := func(body string) map[string]any {
			return object(b.call("PATCH", "/v1/devices/d", adminToken, body).must(200).fields()["tags"])
		}
		for _, step := range []struct{ body, want string }{
			{`{}`, `{"area":"330100","model":"x"}`},
			{`{"tags":{}}`, `{"area":"330100","model":"x"}`},
			{`{"tags":{"model":null,"absent":null,"city":"杭州","empty":""}}`, `{"area":"330100","city":"杭州","empty":""}`},
			{`{"tags":{"area":"330200"},"attributes":null}`, `{"area":"330200","city":"杭州","empty":""}`},
			{`{"tags":null}`, `{}`},
			{`{"tags":{"area":"330300"}}`, `{"area":"330300"}`},
		} {
			var want map[string]any
			_ = json.Unmarshal([]byte(step.want), &want)
			if diff := cmp.Diff(want, patch(step.body)); diff != "" {
				b.Errorf("%s: %s", step.body, diff)
			}
		}
		got := b.get("/v1/devices/d").must(200).fields()
		if object(got["attributes"])["firmware"] != "7.2" || object(got["tags"])["area"] != "330300" {
			b.Errorf("afterwards %v", got)
		}
		var details []string
		events, err := b.store.Events(b.Context(), store.EventFilter{Kind: "device.changed", Device: "d"})
		for _, e := range events {
			details = append(details, e.Actor+" "+e.Detail)
		}
		// The two calls that changed nothing left no events.
		want := []string{
			`bootstrap tags={"area":"330100","city":"杭州","empty":""}`, `bootstrap tags={"area":"330200","city":"杭州","empty":""}`,
			`bootstrap tags={}`, `bootstrap tags={"area":"330300"}`,
		}
		if diff := cmp.Diff(want, details); diff != "" || err != nil {
			b.Error(diff, err)
		}
	})
}

func TestTagsHaveLimits(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		many := map[string]string{}
		for i := range 64 {
			many[fmt.Sprint("t", i)] = "v"
		}
		full, _ := json.Marshal(many)
		b.call("POST", "/v1/devices", adminToken, `{"id":"full","tags":`+string(full)+`}`).must(201)
		for tags, names := range map[string]string{
			`{"one more":"v"}`:                                  "65, at most 64",
			`{"t0":"` + strings.Repeat("v", 8192) + `"}`:        "8192",
			`{"t0":null,"a:b":"v"}`:                             `"a:b"`,
			`{"t0":null,"":"v"}`:                                `""`,
			`{"t0":null,"` + strings.Repeat("n", 65) + `":"v"}`: "1-64 bytes",
			`{"t0":7}`: "tags.t0",
			`["t0"]`:   "tags",
		} {
			b.call("PATCH", "/v1/devices/full", adminToken, `{"tags":`+tags+`}`).problem(422, "invalid_field").names(b.T, names)
			if created := strings.Replace(tags, `"t0":null,`, "", 1); !strings.Contains(tags, "one more") {
				b.call("POST", "/v1/devices", adminToken, `{"id":"new","tags":`+created+`}`).problem(422, "invalid_field").names(b.T, names)
			}
		}
		if diff := cmp.Diff(64, len(object(b.get("/v1/devices/full").fields()["tags"]))); diff != "" {
			b.Errorf("after refusals: %s", diff)
		}
		b.get("/v1/devices/new").problem(404, "not_found")
		b.call("PATCH", "/v1/devices/full", adminToken, `{"tags":{"t0":null,"`+strings.Repeat("n", 64)+`":"v"}}`).must(200)

		b.call("PATCH", "/v1/devices/full", adminToken, `{"attributes":{"firmware":"8"}}`).problem(422, "invalid_field").names(b.T, "attributes", "tags")
		b.call("PATCH", "/v1/devices/full", adminToken, `{"blocked":true}`).problem(400, "unknown_field").names(b.T, "blocked")
		b.call("PATCH", "/v1/devices/full", adminToken, `{"tags":{"k":"\u0000"}}`).problem(400, "invalid_request")
		b.call("PATCH", "/v1/devices/nobody", adminToken, `{"tags":{}}`).problem(404, "not_found")
		b.call("PATCH", "/v1/devices/a%2Fb", adminToken, `{"tags":{}}`).problem(400, "invalid_device_id")
	})
}

func TestDevicesAreFiltered(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		for id, tags := range map[string]string{
			"a1": `{"area":"330100","model":"x"}`, "a2": `{"area":"330100","model":"y:1,2"}`, "a3": `{"area":"330200","model":"x"}`, "a4": `{"model":""}`, "a5": `{}`,
		} {
			b.call("POST", "/v1/devices", adminToken, `{"id":"`+id+`","tags":`+tags+`}`).must(201)
		}
		b.call("POST", "/v1/devices/a2/block", adminToken, nil).must(200)
		for query, want := range map[string][]string{
			"tag=area:330100":                        {"a1", "a2"},
			"tag=area%3A330100&tag=model:x":          {"a1"},
			"tag=area:330100&tag=area:330100":        {"a1", "a2"},
			"tag=model:y:1,2":                        {"a2"},
			"tag=model:":                             {"a4"},
			"tag=area:33":                            nil,
			"tag=none:x":                             nil,
			"blocked=true":                           {"a2"},
			"blocked=false":                          {"a1", "a3", "a4", "a5"},
			"blocked=false&tag=area:330100":          {"a1"},
			"blocked=true&tag=area:330200":           nil,
			"blocked=":                               {"a1", "a2", "a3", "a4", "a5"},
			"tag=model:x&page_size=1000&page_token=": {"a1", "a3"},
		} {
			var got []string
			for _, d := range list(b.get("/v1/devices?"+query).must(200).fields(), "devices") {
				got = append(got, object(d)["id"].(string)) //nolint:errcheck // a panic says as much
			}
			if diff := cmp.Diff(want, got); diff != "" {
				b.Errorf("%s: %s", query, diff)
			}
		}
		if diff := cmp.Diff([]string{"a1", "a3", "a4", "a5"}, b.pages("/v1/devices?blocked=false", "devices", "id")); diff != "" {
			b.Error(diff)
		}
		if rows := b.accept("/v1/devices?tag=area:330100", csvType).must(200).table(); len(rows) != 3 {
			b.Errorf("exported %v", rows)
		}
		for _, bad := range []string{"tag=area", "tag=area:1&tag=area:2", "blocked=perhaps"} {
			b.get("/v1/devices?"+bad).problem(422, "invalid_field").names(b.T, strings.SplitN(bad, "=", 2)[0])
		}
	})
}

func TestDevicesByPrefix(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		for _, id := range []string{"a", "ar", "ar-1", "ar-2", "ar-z", "ar.1", "aR-1", "as-1", "Ar-1"} {
			b.device(id)
		}
		for query, want := range map[string]string{
			"prefix=ar-": "ar-1 ar-2 ar-z", "prefix=ar": "ar ar-1 ar-2 ar-z ar.1", "prefix=ar-z": "ar-z", "prefix=b": "",
			"prefix=ar&page_size=2": "ar ar-1", "prefix=ar-&blocked=true": "",
		} {
			var ids []string
			for _, d := range list(b.get("/v1/devices?"+query).must(200).fields(), "devices") {
				ids = append(ids, fmt.Sprint(object(d)["id"]))
			}
			if got := strings.Join(ids, " "); got != want {
				b.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		b.get("/v1/devices?prefix=%25").problem(422, "invalid_field").names(t, "prefix")
	})
}

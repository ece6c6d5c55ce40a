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
	runOnServers(t, func(b *testAPI) {
		b.Call("POST", "/v1/devices", adminToken, `{"id":"d","tags":{"area":"330100","model":"x"}}`).Expect(201)
		b.SendReport("d", `{"attributes":{"firmware":"7.2"}}`).Expect(200)
		patch := func(body string) map[string]any {
			return asObject(b.Call("PATCH", "/v1/devices/d", adminToken, body).Expect(200).Object()["tags"])
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
		got := b.Get("/v1/devices/d").Expect(200).Object()
		if asObject(got["attributes"])["firmware"] != "7.2" || asObject(got["tags"])["area"] != "330300" {
			b.Errorf("afterwards %v", got)
		}
		var details []string
		events, err := b.store.Events(b.Context(), store.EventFilter{Kind: "device.changed", Device: "d"})
		for _, e := range events {
			details = append(details, e.Actor+" "+e.Detail)
		}
		// The two calls that changed nothing have no events.
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
	runOnServers(t, func(b *testAPI) {
		many := map[string]string{}
		for i := range 64 {
			many[fmt.Sprint("t", i)] = "v"
		}
		full, _ := json.Marshal(many)
		b.Call("POST", "/v1/devices", adminToken, `{"id":"full","tags":`+string(full)+`}`).Expect(201)
		for tags, names := range map[string]string{
			`{"one more":"v"}`:                                  "65 tags, at most 64",
			`{"t0":"` + strings.Repeat("v", 8192) + `"}`:        "8192",
			`{"t0":null,"a:b":"v"}`:                             `"a:b"`,
			`{"t0":null,"":"v"}`:                                `""`,
			`{"t0":null,"` + strings.Repeat("n", 65) + `":"v"}`: "1-64 bytes",
			`{"t0":7}`: "tags.t0",
			`["t0"]`:   "tags",
		} {
			b.Call("PATCH", "/v1/devices/full", adminToken, `{"tags":`+tags+`}`).ExpectProblem(422, "invalid_field", names)
			if created := strings.Replace(tags, `"t0":null,`, "", 1); !strings.Contains(tags, "one more") {
				b.Call("POST", "/v1/devices", adminToken, `{"id":"new","tags":`+created+`}`).ExpectProblem(422, "invalid_field", names)
			}
		}
		if diff := cmp.Diff(64, len(asObject(b.Get("/v1/devices/full").Object()["tags"]))); diff != "" {
			b.Errorf("after refusals: %s", diff)
		}
		b.Get("/v1/devices/new").ExpectProblem(404, "not_found")
		b.Call("PATCH", "/v1/devices/full", adminToken, `{"tags":{"t0":null,"`+strings.Repeat("n", 64)+`":"v"}}`).Expect(200)

		b.Call("PATCH", "/v1/devices/full", adminToken, `{"attributes":{"firmware":"8"}}`).ExpectProblem(422, "invalid_field", "attributes", "tags")
		b.Call("PATCH", "/v1/devices/full", adminToken, `{"blocked":true}`).ExpectProblem(400, "unknown_field", "blocked")
		b.Call("PATCH", "/v1/devices/full", adminToken, `{"tags":{"k":"\u0000"}}`).ExpectProblem(400, "invalid_request")
		b.Call("PATCH", "/v1/devices/nobody", adminToken, `{"tags":{}}`).ExpectProblem(404, "not_found")
		b.Call("PATCH", "/v1/devices/a%2Fb", adminToken, `{"tags":{}}`).ExpectProblem(400, "invalid_device_id")
	})
}

func TestDevicesAreFiltered(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		for id, tags := range map[string]string{
			"a1": `{"area":"330100","model":"x"}`, "a2": `{"area":"330100","model":"y:1,2"}`, "a3": `{"area":"330200","model":"x"}`, "a4": `{"model":""}`, "a5": `{}`,
		} {
			b.Call("POST", "/v1/devices", adminToken, `{"id":"`+id+`","tags":`+tags+`}`).Expect(201)
		}
		b.Call("POST", "/v1/devices/a2/block", adminToken, nil).Expect(200)
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
			for _, d := range listField(b.Get("/v1/devices?"+query).Expect(200).Object(), "devices") {
				got = append(got, asObject(d)["id"].(string)) //nolint:errcheck // a wrong type panics, which fails the test
			}
			if diff := cmp.Diff(want, got); diff != "" {
				b.Errorf("%s: %s", query, diff)
			}
		}
		if diff := cmp.Diff([]string{"a1", "a3", "a4", "a5"}, b.readPages("/v1/devices?blocked=false", "devices", "id")); diff != "" {
			b.Error(diff)
		}
		if rows := b.getWithAccept("/v1/devices?tag=area:330100", csvType).Expect(200).CSVRows(); len(rows) != 3 {
			b.Errorf("exported %v", rows)
		}
		for _, bad := range []string{"tag=area", "tag=area:1&tag=area:2", "blocked=perhaps"} {
			b.Get("/v1/devices?"+bad).ExpectProblem(422, "invalid_field", strings.SplitN(bad, "=", 2)[0])
		}
	})
}

func TestDevicesByPrefix(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		for _, id := range []string{"a", "ar", "ar-1", "ar-2", "ar-z", "ar.1", "aR-1", "as-1", "Ar-1"} {
			b.createDevice(id)
		}
		for query, want := range map[string]string{
			"prefix=ar-": "ar-1 ar-2 ar-z", "prefix=ar": "ar ar-1 ar-2 ar-z ar.1", "prefix=ar-z": "ar-z", "prefix=b": "",
			"prefix=ar&page_size=2": "ar ar-1", "prefix=ar-&blocked=true": "",
		} {
			var ids []string
			for _, d := range listField(b.Get("/v1/devices?"+query).Expect(200).Object(), "devices") {
				ids = append(ids, fmt.Sprint(asObject(d)["id"]))
			}
			if got := strings.Join(ids, " "); got != want {
				b.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		b.Get("/v1/devices?prefix=%25").ExpectProblem(422, "invalid_field", "prefix")
	})
}

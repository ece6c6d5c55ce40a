package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const perAccountPolicy = `{"name":"per-account","per":"tags.account","algorithm":"sliding","windows":[{"max":1,"per_ms":60000},{"max":5,"per_ms":3600000}]}`

func TestLimitsAreShownPatchedAndPasted(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60,"limits":[`+perAccountPolicy+`]}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1"],"limits":[{"name":"same-content","algorithm":"duplicate","per_ms":60000,"max":2}]}`)
		for _, path := range []string{"/v1/pools/p", "/v1/batches/1"} {
			shown := b.Get(path).Expect(200).Object()
			if len(listField(shown, "limits")) != 1 {
				b.Fatalf("%s shows %v", path, shown["limits"])
			}
			b.Call("PATCH", path, adminToken, `{}`).Expect(200)
			if kept := b.Get(path).Object(); !cmp.Equal(kept["limits"], shown["limits"]) {
				b.Errorf("%s: a patch of something else made %v", path, kept["limits"])
			}
			changed := b.Call("PATCH", path, adminToken, `{"limits":[{"name":"n","per":"pool","algorithm":"fixed","per_ms":1000,"max":7}]}`).Expect(200).Object()
			if one := asObject(listField(changed, "limits")[0]); one["max"] != 7.0 || one["name"] != "n" {
				b.Errorf("%s: patched to %v", path, changed["limits"])
			}
			if none := b.Call("PATCH", path, adminToken, `{"limits":null}`).Expect(200).Object(); len(listField(none, "limits")) != 0 {
				b.Errorf("%s: patched to %v", path, none["limits"])
			}
		}
		pasted := b.Call("PATCH", "/v1/pools/p", adminToken, `{"limits":[`+perAccountPolicy+`]}`).Expect(200)
		if again := b.Call("PUT", "/v1/pools/p", adminToken, string(pasted.Body)).Expect(200); !cmp.Equal(again.Object(), pasted.Object()) {
			b.Errorf("pasting a pool changed it: %s", cmp.Diff(pasted.Object(), again.Object()))
		}
		events := string(b.Get("/v1/events?kind=pool.changed").Expect(200).Body)
		if !strings.Contains(events, "limits=none") || !strings.Contains(events, `per-account`) {
			b.Errorf("the audit log does not say what changed: %s", events)
		}
	})
}

func TestBadLimitsAreRefusedByName(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
	for policy, want := range map[string]string{
		`{"name":"n","algorithm":"leaky"}`:                                                                           "algorithm",
		`{"name":"n","algorithm":"fixed","per":"device","per_ms":1000,"max":0}`:                                      "limits[0].max: must be between 1 and 1000000000",
		`{"name":"n","algorithm":"fixed","per":"attributes.firmware","per_ms":1000,"max":1}`:                         "trust_device",
		`{"name":"n","algorithm":"fixed","per":"device","per_ms":1000,"max":1,"burst":3}`:                            "burst",
		`{"name":"n","algorithm":"sliding","per":"device","windows":[{"max":1,"per_ms":1000},{"max":0,"per_ms":5}]}`: "limits[0].windows[1].max: must be between 1 and 100000",
		`{"name":"n","algorithm":"calendar","per":"device","max":1,"period":"day","timezone":"Asia/Peking Opera"}`:   "limits[0].timezone",
	} {
		for _, call := range [][3]string{
			{"PUT", "/v1/pools/p", `{"capacity":60,"limits":[` + policy + `]}`},
			{"PATCH", "/v1/pools/p", `{"limits":[` + policy + `]}`},
			{"PATCH", "/v1/batches/1", `{"limits":[` + policy + `]}`},
			{"POST", "/v1/batches", `{"pool":"p","devices":["d-1"],"limits":[` + policy + `]}`},
		} {
			r := b.Call(call[0], call[1], adminToken, call[2])
			if (r.Status != 422 && r.Status != 400) || !strings.Contains(string(r.Body), want) {
				b.Errorf("%s %s %s: %d %s, want %q", call[0], call[1], policy, r.Status, r.Body, want)
			}
		}
	}
	if pool := b.Get("/v1/pools/p").Object(); pool["version"] != 1.0 {
		b.Errorf("changed by what was refused: %v", pool)
	}
}

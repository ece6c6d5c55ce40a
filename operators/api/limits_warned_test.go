package api_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestPoliciesThatNameWhatNoDeviceHasAreWarnedOf checks policies that count by a tag or attribute that no device
// has: they are accepted with a warning. While there are no devices, there is no warning.
func TestPoliciesThatNameWhatNoDeviceHasAreWarnedOf(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		for round, registered := range []bool{false, true} {
			if registered {
				b.Call("POST", "/v1/devices", adminToken, `{"id":"d-1","tags":{"account":"north","a.b":"1"}}`).Expect(201)
				b.SendReport("d-2", `{"attributes":{"net":{"asn":7}}}`).Expect(200)
			}
			for per, want := range map[string]string{
				"tags.account": "", "tags.a.b": "", "device,kind": "", "payload.x": "", "attributes.net.asn": "",
				"tags.acount":          `limits: no device has the tag "acount" (looked at: 2)`,
				"device,attributes.nt": `limits: no device has the attribute "nt" (looked at: 2)`,
			} {
				limits := fmt.Sprintf(`"limits":[{"name":"l","per":%q,"algorithm":"fixed","max":1,"per_ms":1000,"trust_device":%t}]`, per, strings.Contains(per, "attributes"))
				if !registered {
					want = ""
				}
				b.expectWarnings(per, want, round, limits)
			}
		}
		b.Get("/v1/pools/p").Expect(200)
		if text := string(b.Get("/v1/pools/p").Body); strings.Contains(text, "warnings") {
			b.Errorf("a reading warns: %s", text)
		}
	})
}

// expectWarnings sends these policies with every operation that accepts policies, and checks the warning in each
// response.
func (b *testAPI) expectWarnings(per, want string, round int, limits string) {
	b.Helper()
	batch := b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
	for _, ask := range []struct{ method, path, body string }{
		{"PUT", "/v1/pools/p", `{"capacity":60,` + limits + `}`},
		{"PATCH", "/v1/pools/p", `{` + limits + `}`},
		{"PUT", "/v1/pools/new?dry_run=true", `{"capacity":60,` + limits + `}`},
		{"PATCH", "/v1/pools/p?dry_run=true", `{` + limits + `}`},
		{"PUT", "/v1/profiles/x", `{` + limits + `}`},
		{"PATCH", fmt.Sprintf("/v1/batches/%d", batch), `{` + limits + `}`},
		{"POST", "/v1/batches", `{"pool":"p","devices":["d-1"],` + limits + `}`},
		{"POST", "/v1/batches?dry_run=true", `{"pool":"p","devices":["d-1"],` + limits + `}`},
	} {
		a := b.Call(ask.method, ask.path, adminToken, ask.body)
		got := listField(a.Object(), "warnings")
		if a.Status/100 != 2 || len(got) != min(len(want), 1) || want != "" && !strings.HasPrefix(fmt.Sprint(got[0]), want) {
			b.Errorf("%s %s per %s (round %d): %d %v, want %q", ask.method, ask.path, per, round, a.Status, got, want)
		}
	}
}

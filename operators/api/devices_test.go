package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDeviceGetsItsTokenOnce(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		made := b.Call("POST", "/v1/devices", adminToken, `{"id":"ar:7","tags":{"city":"hangzhou"}}`).Expect(201)
		token, _ := made.Object()["token"].(string)
		if len(token) != 43 {
			b.Fatalf("token %q", token)
		}
		for _, path := range []string{"/v1/devices/ar:7", "/v1/devices/ar%3A7", "/v1/devices/ar%3a7", "/v1/devices"} {
			if body := string(b.Get(path).Expect(200).Body); strings.Contains(body, token) || !strings.Contains(body, `"id":"ar:7"`) || !strings.Contains(body, `"city":"hangzhou"`) {
				b.Errorf("%s: %s", path, body)
			}
		}
		b.Call("POST", "/v1/devices", adminToken, `{"id":"ar:7"}`).ExpectProblem(409, "already_exists")
		for _, path := range []string{"/v1/devices/ar:7/report", "/v1/devices/ar%3A7/report"} {
			b.Call("POST", path, token, `{"attributes":{"firmware":"7.2"}}`).Expect(200)
		}
		got := b.Get("/v1/devices/ar:7").Expect(200).Object()
		attributes := asObject(got["attributes"])
		if got["own_token"] != true || attributes["firmware"] != "7.2" || got["blocked"] != false {
			b.Errorf("after its first report: %v", got)
		}
		b.Call("POST", "/v1/devices/ar:7/report", fleetToken, `{}`).ExpectProblem(403, "forbidden")
		b.Call("POST", "/v1/devices/AR:7/report", token, `{}`).ExpectProblem(403, "forbidden") // ids are case-sensitive
	})
}

// badDeviceIDs returns invalid device ids as path segments, each with the code of the expected refusal.
func badDeviceIDs() map[string]string {
	return map[string]string{
		"a%2Fb": "invalid_device_id", "a+b": "invalid_device_id", "a%2Bb": "invalid_device_id", "a%23b": "invalid_device_id",
		"%20": "invalid_device_id", "%C3%BC": "invalid_device_id", "%24SYS": "invalid_device_id", "-a": "invalid_device_id",
		".": "invalid_path", "..": "invalid_path", "%2e%2e": "invalid_path", "%2E%2E%2Fx": "invalid_path", "a%2F%2Fb": "invalid_path",
		"%2Fa": "invalid_path", "%00": "invalid_path", "%FF": "invalid_path", "...": "invalid_device_id",
		strings.Repeat("d", 129): "invalid_device_id", strings.Repeat("d", 200): "invalid_device_id", strings.Repeat("%3A", 200): "invalid_device_id",
	}
}

func TestBadDevicesAreRefusedWhole(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		for id, code := range badDeviceIDs() {
			b.Get("/v1/devices/"+id).ExpectProblem(400, code)
		}
		b.expectRefused("POST", "/v1/devices", []badBody{
			{`{}`, 422, "invalid_field", []string{"id"}},
			{`{"id":""}`, 422, "invalid_field", []string{"id"}},
			{`{"id":7}`, 422, "invalid_field", []string{"id", "string"}},
			{`{"id":"a/b"}`, 400, "invalid_device_id", []string{"may only contain"}},
			{`{"id":".."}`, 400, "invalid_device_id", nil},
			{`{"id":"` + strings.Repeat("d", 129) + `"}`, 400, "invalid_device_id", []string{"128"}},
			{`{"id":"a","tags":{"k":7}}`, 422, "invalid_field", []string{"tags.k"}},
			{`{"id":"a","tags":["k"]}`, 422, "invalid_field", []string{"tags"}},
			{`{"id":"a","tags":{"k":"\u0000"}}`, 400, "invalid_request", []string{"U+0000"}},
			{`{"id":"a","token":"mine"}`, 422, "invalid_field", []string{"token"}},
		})
		b.Get("/v1/devices/a").ExpectProblem(404, "not_found")
		if found := listField(b.Get("/v1/devices").Object(), "devices"); len(found) != 0 {
			b.Errorf("%d devices after refusals, want none", len(found))
		}
		b.Call("POST", "/v1/devices", adminToken, `{"id":"`+strings.Repeat("d", 128)+`","tags":{"k":"\ud800"}}`).Expect(201)
		b.Get("/v1/devices/" + strings.Repeat("d", 128)).Expect(200)
	})
}

func TestDevicesArePaged(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		for _, id := range []string{"b", "A", "a:1", "c", "B"} {
			b.createDevice(id)
		}
		if diff := cmp.Diff([]string{"A", "B", "a:1", "b", "c"}, b.readPages("/v1/devices", "devices", "id")); diff != "" {
			b.Error(diff)
		}
		b.expectPageErrors("/v1/devices")
	})
}

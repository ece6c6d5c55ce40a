package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// putProfile creates or changes a profile of devices with these policies.
func (b *testAPI) putProfile(name, policies string) {
	b.Helper()
	if a := b.Call("PUT", "/v1/profiles/"+name, adminToken, `{"limits":[`+policies+`]}`); a.Status > 299 {
		b.Fatalf("%s: %d: %s", a.Line, a.Status, a.Body)
	}
}

func TestProfiles(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		made := b.Call("PUT", "/v1/profiles/slow", adminToken, `{"limits":[`+perAccountPolicy+`]}`).Expect(201).Object()
		if one := asObject(listField(made, "limits")[0]); made["name"] != "slow" || made["version"] != 1.0 || one["name"] != "per-account" {
			b.Errorf("made %v", made)
		}
		again := b.Call("PUT", "/v1/profiles/slow", adminToken, string(b.Get("/v1/profiles/slow").Expect(200).Body)).Expect(200).Object()
		if diff := cmp.Diff(made, again); diff != "" {
			b.Errorf("pasting a profile changed it: %s", diff)
		}
		changed := b.Call("PUT", "/v1/profiles/slow", adminToken, `{"limits":null}`).Expect(200).Object()
		if changed["version"] != 2.0 || len(listField(changed, "limits")) != 0 {
			b.Errorf("changed to %v", changed)
		}
		b.putProfile("a", perAccountPolicy)
		if names := b.readPages("/v1/profiles", "profiles", "name"); !cmp.Equal(names, []string{"a", "slow"}) {
			b.Errorf("listed %v", names)
		}
		b.Call("DELETE", "/v1/profiles/slow", adminToken, nil).Expect(204)
		b.Get("/v1/profiles/slow").ExpectProblem(404, "not_found")
		b.Call("DELETE", "/v1/profiles/slow", adminToken, nil).ExpectProblem(404, "not_found")
		for _, name := range []string{"-x", strings.Repeat("x", 65), "a%20b"} {
			b.Call("PUT", "/v1/profiles/"+name, adminToken, `{}`).ExpectProblem(422, "invalid_field", "profile")
		}
		b.Call("PUT", "/v1/profiles/x", adminToken, `{"limits":[`+strings.Replace(perAccountPolicy, `"max":5`, `"max":0`, 1)+`]}`).
			ExpectProblem(422, "invalid_field", "limits[0].windows[1].max: must be between 1 and 100000")
		b.Call("PUT", "/v1/profiles/x", adminToken, `{"limit":[]}`).ExpectProblem(400, "unknown_field")
		b.Get("/v1/profiles/x").ExpectProblem(404, "not_found")
		events := string(b.Get("/v1/events").Expect(200).Body)
		for _, said := range []string{`"profile.created"`, `"profile.changed"`, `"profile.deleted"`, "] -> none", "profile=a limits=[{"} {
			if !strings.Contains(events, said) {
				b.Errorf("the audit log does not say %s: %s", said, events)
			}
		}
	})
}

func TestDevicesHaveProfiles(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.putProfile("slow", perAccountPolicy)
		b.putProfile("fast", ``)
		made := b.Call("POST", "/v1/devices", adminToken, `{"id":"d-1","tags":{"a":"1"},"profile":"slow"}`).Expect(201).Object()
		if made["profile"] != "slow" {
			b.Errorf("made %v", made)
		}
		b.createDevice("d-2")
		patch := func(body, want string) {
			b.Helper()
			d := b.Call("PATCH", "/v1/devices/d-1", adminToken, body).Expect(200).Object()
			if shown := b.Get("/v1/devices/d-1").Object(); d["profile"] != want || shown["profile"] != want || asObject(shown["tags"])["a"] != "1" {
				b.Errorf("%s: %v, shown %v", body, d, shown)
			}
		}
		patch(`{}`, "slow")
		patch(`{"profile":"fast"}`, "fast")
		b.Call("PATCH", "/v1/devices/d-1", adminToken, `{"profile":"none-such","tags":{"a":"2"}}`).ExpectProblem(422, "unknown_profile", "profile")
		b.Call("POST", "/v1/devices", adminToken, `{"id":"d-3","profile":"none-such"}`).ExpectProblem(422, "unknown_profile")
		b.Get("/v1/devices/d-3").ExpectProblem(404, "not_found")
		if found := b.readPages("/v1/devices?profile=fast", "devices", "id"); !cmp.Equal(found, []string{"d-1"}) {
			b.Errorf("of profile fast: %v", found)
		}
		b.Call("DELETE", "/v1/profiles/fast", adminToken, nil).ExpectProblem(409, "in_use")
		patch(`{"profile":null}`, "")
		b.Call("DELETE", "/v1/profiles/fast", adminToken, nil).Expect(204)
		events := string(b.Get("/v1/events?kind=device.changed").Expect(200).Body)
		if !strings.Contains(events, `"profile=fast"`) || !strings.Contains(events, `"profile=none"`) {
			b.Errorf("the log does not say who has which profile: %s", events)
		}
	})
}

func TestProfilesAreImported(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.putProfile("slow", ``)
		b.sendWithType("POST", "/v1/devices", csvType, "device,:profile,profile\nc-1,slow,a tag\nc-2,,\n").Expect(201)
		b.sendWithType("POST", "/v1/devices", ndjsonType, `{"id":"n-1","profile":"slow"}`+"\n"+`{"id":"n-2","tags":{"a":"b"}}`).Expect(201)
		for id, want := range map[string]string{"c-1": "slow", "c-2": "", "n-1": "slow", "n-2": ""} {
			d := b.Get("/v1/devices/" + id).Expect(200).Object()
			if _, is := asObject(d["tags"])[":profile"]; d["profile"] != want || is {
				b.Errorf("%s: %v", id, d)
			}
		}
		if tags := asObject(b.Get("/v1/devices/c-1").Object()["tags"]); tags["profile"] != "a tag" {
			b.Errorf("tags %v", tags)
		}
		b.sendWithType("POST", "/v1/devices", csvType, "device,:profile\nc-3,slow\nc-4,none-such\nc-5,none-such\n").ExpectProblem(422, "invalid_line", "line 3", "none-such")
		b.Get("/v1/devices/c-3").ExpectProblem(404, "not_found")
		b.sendWithType("POST", "/v1/devices?existing=rotate", csvType, "device\nc-1\n").Expect(201)
		if d := b.Get("/v1/devices/c-1").Object(); d["profile"] != "slow" {
			b.Errorf("a rotation took the profile: %v", d)
		}
	})
}

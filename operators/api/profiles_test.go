package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// profile puts a profile with these policies.
func (b *bench) profile(name, policies string) {
	b.Helper()
	if a := b.call("PUT", "/v1/profiles/"+name, adminToken, `{"limits":[`+policies+`]}`); a.status > 299 {
		b.Fatalf("%s: %d: %s", a.what, a.status, a.body)
	}
}

func TestProfiles(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		made := b.call("PUT", "/v1/profiles/slow", adminToken, `{"limits":[`+perAccount+`]}`).must(201).fields()
		if one := object(list(made, "limits")[0]); made["name"] != "slow" || made["version"] != 1.0 || one["name"] != "per-account" {
			b.Errorf("made %v", made)
		}
		again := b.call("PUT", "/v1/profiles/slow", adminToken, string(b.get("/v1/profiles/slow").must(200).body)).must(200).fields()
		if diff := cmp.Diff(made, again); diff != "" {
			b.Errorf("pasting a profile changed it: %s", diff)
		}
		changed := b.call("PUT", "/v1/profiles/slow", adminToken, `{"limits":null}`).must(200).fields()
		if changed["version"] != 2.0 || len(list(changed, "limits")) != 0 {
			b.Errorf("changed to %v", changed)
		}
		b.profile("a", perAccount)
		if names := b.pages("/v1/profiles", "profiles", "name"); !cmp.Equal(names, []string{"a", "slow"}) {
			b.Errorf("listed %v", names)
		}
		b.call("DELETE", "/v1/profiles/slow", adminToken, nil).must(204)
		b.get("/v1/profiles/slow").problem(404, "not_found")
		b.call("DELETE", "/v1/profiles/slow", adminToken, nil).problem(404, "not_found")
		for _, name := range []string{"-x", strings.Repeat("x", 65), "a%20b"} {
			b.call("PUT", "/v1/profiles/"+name, adminToken, `{}`).problem(422, "invalid_field").names(b.T, "profile")
		}
		b.call("PUT", "/v1/profiles/x", adminToken, `{"limits":[`+strings.Replace(perAccount, `"max":5`, `"max":0`, 1)+`]}`).
			problem(422, "invalid_field").names(b.T, "limits[0].windows[1].max: 1 to 100000")
		b.call("PUT", "/v1/profiles/x", adminToken, `{"limit":[]}`).problem(400, "unknown_field")
		b.get("/v1/profiles/x").problem(404, "not_found")
		events := string(b.get("/v1/events").must(200).body)
		for _, said := range []string{`"profile.created"`, `"profile.changed"`, `"profile.deleted"`, "profile=slow limits=none", "profile=a limits=[{"} {
			if !strings.Contains(events, said) {
				b.Errorf("the audit log does not say %s: %s", said, events)
			}
		}
	})
}

func TestDevicesHaveProfiles(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.profile("slow", perAccount)
		b.profile("fast", ``)
		made := b.call("POST", "/v1/devices", adminToken, `{"id":"d-1","tags":{"a":"1"},"profile":"slow"}`).must(201).fields()
		if made["profile"] != "slow" {
			b.Errorf("made %v", made)
		}
		b.device("d-2")
		patch := func(body, want string) {
			b.Helper()
			d := b.call("PATCH", "/v1/devices/d-1", adminToken, body).must(200).fields()
			if shown := b.get("/v1/devices/d-1").fields(); d["profile"] != want || shown["profile"] != want || object(shown["tags"])["a"] != "1" {
				b.Errorf("%s: %v, shown %v", body, d, shown)
			}
		}
		patch(`{}`, "slow")
		patch(`{"profile":"fast"}`, "fast")
		b.call("PATCH", "/v1/devices/d-1", adminToken, `{"profile":"none-such","tags":{"a":"2"}}`).problem(422, "unknown_profile").names(b.T, "profile")
		b.call("POST", "/v1/devices", adminToken, `{"id":"d-3","profile":"none-such"}`).problem(422, "unknown_profile")
		b.get("/v1/devices/d-3").problem(404, "not_found")
		if found := b.pages("/v1/devices?profile=fast", "devices", "id"); !cmp.Equal(found, []string{"d-1"}) {
			b.Errorf("of profile fast: %v", found)
		}
		b.call("DELETE", "/v1/profiles/fast", adminToken, nil).problem(409, "in_use")
		patch(`{"profile":null}`, "")
		b.call("DELETE", "/v1/profiles/fast", adminToken, nil).must(204)
		events := string(b.get("/v1/events?kind=device.changed").must(200).body)
		if !strings.Contains(events, `"profile=fast"`) || !strings.Contains(events, `"profile=none"`) {
			b.Errorf("the log does not say who has which profile: %s", events)
		}
	})
}

func TestProfilesAreImported(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.profile("slow", ``)
		b.postAs("POST", "/v1/devices", csvType, "device,:profile,profile\nc-1,slow,a tag\nc-2,,\n").must(201)
		b.postAs("POST", "/v1/devices", ndjsonType, `{"id":"n-1","profile":"slow"}`+"\n"+`{"id":"n-2","tags":{"a":"b"}}`).must(201)
		for id, want := range map[string]string{"c-1": "slow", "c-2": "", "n-1": "slow", "n-2": ""} {
			d := b.get("/v1/devices/" + id).must(200).fields()
			if _, is := object(d["tags"])[":profile"]; d["profile"] != want || is {
				b.Errorf("%s: %v", id, d)
			}
		}
		if tags := object(b.get("/v1/devices/c-1").fields()["tags"]); tags["profile"] != "a tag" {
			b.Errorf("tags %v", tags)
		}
		b.postAs("POST", "/v1/devices", csvType, "device,:profile\nc-3,slow\nc-4,none-such\nc-5,none-such\n").problem(422, "invalid_line").names(b.T, "line 3", "none-such")
		b.get("/v1/devices/c-3").problem(404, "not_found")
		b.postAs("POST", "/v1/devices?existing=rotate", csvType, "device\nc-1\n").must(201)
		if d := b.get("/v1/devices/c-1").fields(); d["profile"] != "slow" {
			b.Errorf("a rotation took the profile: %v", d)
		}
	})
}

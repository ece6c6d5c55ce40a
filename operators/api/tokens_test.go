package api_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// createTokenID creates an operator token with a unique name and returns its id. Nobody uses this token.
func (b *testAPI) createTokenID() int64 {
	b.Helper()
	var made struct{ ID int64 }
	b.Call("POST", "/v1/tokens", adminToken, `{"name":"`+rand.Text()+`","role":"viewer"}`).Expect(201).Decode(&made)
	return made.ID
}

func TestOperatorTokensActInTheirRole(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.createDevice("d-1") // this creates the token of a device, not of an operator
		made := b.Call("POST", "/v1/tokens", adminToken, `{"name":"ci","role":"operator","expires_at":"2099-01-01T00:00:00Z"}`).Expect(201).Object()
		secret, _ := made["token"].(string)
		b.PutPool("p", `{"capacity":60}`)
		b.Call("POST", "/v1/batches", secret, newBatchBody).Expect(201)
		b.Call("PUT", "/v1/pools/q", secret, `{"capacity":60}`).ExpectProblem(403, "forbidden")
		b.Call("GET", "/v1/tokens", secret, nil).ExpectProblem(403, "forbidden")
		listed := listField(b.Get("/v1/tokens").Expect(200).Object(), "tokens")
		delete(made, "token")
		if diff := cmp.Diff([]any{made}, listed); diff != "" {
			b.Errorf("no secret, and no device's token: %s", diff)
		}
		if events := listField(b.Get("/v1/events?actor=ci&kind=batch.created").Expect(200).Object(), "events"); len(events) != 1 {
			b.Errorf("who did it stands in the log: %v", events)
		}
		b.createTokenID()
		if diff := cmp.Diff([]string{"2", "3"}, b.readPages("/v1/tokens", "tokens", "id")); diff != "" {
			b.Error(diff)
		}
		path := fmt.Sprintf("/v1/tokens/%v", made["id"])
		b.Call("DELETE", path, adminToken, nil).Expect(200)
		b.Call("DELETE", path, adminToken, nil).ExpectProblem(404, "not_found")
		b.Call("DELETE", "/v1/tokens/1", adminToken, nil).ExpectProblem(404, "not_found") // the token of the device
		for bad, field := range map[string]string{
			`"role":"caller"`:                                                 "pools, limit_sets",
			`"role":"viewer","pools":["x"]`:                                   "pools, limit_sets",
			`"role":"caller","pools":["x",""]`:                                "pools[1]",
			`"role":"caller","limit_sets":["a?"]`:                             "limit_sets[0]",
			`"role":"caller","pools":["` + strings.Repeat("x", 65) + `"]`:     "pools[0]",
			`"role":"caller","pools":["x"` + strings.Repeat(`,"x"`, 32) + `]`: "pools",
		} {
			if p := b.Call("POST", "/v1/tokens", adminToken, `{"name":"n",`+bad+`}`).ExpectProblem(422, "invalid_field"); !strings.HasPrefix(p.Detail, field+":") {
				b.Errorf("%s: %s", bad, p.Detail)
			}
		}
		for _, bad := range []string{`{}`, `{"name":"n"}`, `{"name":"","role":"viewer"}`, `{"name":"n","role":"root"}`, `{"name":"n","role":"viewer","expires_at":"soon"}`} {
			b.Call("POST", "/v1/tokens", adminToken, bad).ExpectProblem(422, "invalid_field")
		}
		b.Call("POST", "/v1/tokens", adminToken, `{"name":"viewer of p","role":"viewer"}`).Expect(201)
		for _, taken := range []string{"viewer of p", "reaper", "bootstrap"} {
			b.Call("POST", "/v1/tokens", adminToken, fmt.Sprintf(`{"name":%q,"role":"viewer"}`, taken)).ExpectProblem(409, "already_exists")
		}
	})
}

// TestNamesOfTokensAreVisible checks that names of tokens with invisible or misplaced characters are refused, because they look like
// another name.
func TestNamesOfTokensAreVisible(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	create := func(name string) rig.Response {
		body, err := json.Marshal(map[string]string{"name": name, "role": "viewer"})
		b.Must(err)
		return b.Call("POST", "/v1/tokens", adminToken, string(body))
	}
	for _, name := range []string{
		" ", "al\tice", "alice ", " alice", "viewer  of p", "alice\n", "alice\u200b", "al\u00adice", "\u202eecila", "alice\u00a0", "a\u3000b",
		"\u3164", "\u2800", "alice\ufe0f", "a\u034fb", "\x7f", "a\U000e0061b",
	} {
		p := create(name).ExpectProblem(422, "invalid_field")
		if !strings.HasPrefix(p.Detail, "name: only visible characters") {
			b.Errorf("%q: %s", name, p.Detail)
		}
	}
	for _, name := range []string{"alice", "viewer of p", "Jörg Müller", "Jo\u0308rg", "北京", "ops@example.org", "a/b", "😀"} {
		create(name).Expect(201)
	}
}

// The patterns of a caller's token (for pools and limit sets) are stored, shown and logged.
func TestPatternsOfACallerAreKept(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.createCallerToken(`"pools":["ci-*","x"],"limit_sets":["sms-*"]`)
		for _, patterns := range []string{`"pools":["ci-*"]`, `"limit_sets":["*"],"pools":null`} {
			b.createCallerToken(patterns)
		}
		var shown struct {
			Tokens []struct {
				Pools []string
				Sets  []string `json:"limit_sets"`
			}
		}
		b.Get("/v1/tokens").Expect(200).Decode(&shown)
		if got, want := fmt.Sprint(shown.Tokens), "[{[ci-* x] [sms-*]} {[ci-*] []} {[] [*]}]"; got != want {
			b.Errorf("%s, want %s", got, want)
		}
		b.Call("DELETE", "/v1/tokens/1", adminToken, nil).Expect(200)
		for _, kind := range []string{"token.created", "token.revoked"} {
			events := b.Get("/v1/events?order=oldest&kind=" + kind).Expect(200).Object()
			if text := fmt.Sprint(listField(events, "events")[0]); !strings.Contains(text, "id=1 role=caller pools=ci-*,x limit_sets=sms-* name=") {
				b.Errorf("%s: %s", kind, text)
			}
		}
	})
}

// A token is revoked or expires. A replica that has cached it refuses it after at most 5 s. A replica that has not
// cached it refuses it at once.
func TestARevokedTokenEndsEverywhere(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var elapsed atomic.Int64
	b := startEmbedded(t, func(s *rig.Options) {
		s.Dispatcher.Now = func() time.Time { return now.Add(time.Duration(elapsed.Load())) }
	})
	made := b.Call("POST", "/v1/tokens", adminToken, `{"name":"n","role":"viewer"}`).Expect(201).Object()
	secret, _ := made["token"].(string)
	b.Call("GET", "/v1/pools", secret, nil).Expect(200)
	other := rig.Start(t, b.Stores)
	if _, err := b.store.RevokeToken(t.Context(), "op", int64(made["id"].(float64))); err != nil { //nolint:errcheck // JSON's numbers
		t.Fatal(err)
	}
	other.Call("GET", "/v1/pools", secret, nil).ExpectProblem(401, "unauthenticated")
	elapsed.Store(int64(5 * time.Second))
	b.Call("GET", "/v1/pools", secret, nil).ExpectProblem(401, "unauthenticated")
}

// The list of tokens has the time at which each token was last used. A use is not a change of the token, so
// replicas are not notified of it.
func TestTheListSaysWhenTokensWereUsed(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		used, _ := b.Call("POST", "/v1/tokens", adminToken, `{"name":"used","role":"viewer"}`).Expect(201).Object()["token"].(string)
		b.Call("POST", "/v1/tokens", adminToken, `{"name":"unused","role":"viewer"}`).Expect(201)
		before, err := b.store.ChangedTokens(b.Context(), 0)
		b.Must(err)
		for range 3 {
			b.Call("GET", "/v1/pools", used, nil).Expect(200)
		}
		b.Must(b.Dispatcher.Seen.Flush(b.Context()))
		var shown struct {
			Tokens []struct {
				Name     string
				Last     *time.Time `json:"last_used_at"`
				Requests int
			}
		}
		b.Get("/v1/tokens").Expect(200).Decode(&shown)
		for _, one := range shown.Tokens {
			if isUsed := one.Name == "used"; (one.Last != nil) != isUsed || isUsed != (one.Requests == 3) {
				b.Errorf("%s: last used %v, %d requests", one.Name, one.Last, one.Requests)
			}
		}
		if after, err := b.store.ChangedTokens(b.Context(), 0); err != nil || len(after.Tokens) != len(before.Tokens) {
			b.Errorf("%d changes before, %d after: %v", len(before.Tokens), len(after.Tokens), err)
		}
	})
}

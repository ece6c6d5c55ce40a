package api_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators/gate"
)

// startWithLockout starts the API with a gate that locks out clients that guess tokens, as the product does.
func startWithLockout(t *testing.T, changes ...func(*rig.Options)) *testAPI {
	t.Helper()
	return startEmbedded(t, append(changes, func(s *rig.Options) {
		events, _ := s.API.Store.(gate.Ledger)
		g := gate.New(gate.Options{Log: slog.New(slog.DiscardHandler), Ledger: events})
		s.Dispatcher.Registerer.MustRegister(g)
		s.API.Gate = g
	})...)
}

// TestWrongOperatorTokensAreSlowed checks wrong operator tokens: guesses at the API and guesses at the sign-in count
// together. Devices are not affected. Operators whose token was accepted from the same address before are not affected
// either.
func TestWrongOperatorTokensAreSlowed(t *testing.T) {
	t.Parallel()
	b := startWithLockout(t)
	b.PutPool("p", `{"capacity":1}`)
	late := b.createToken("operator")
	for range 10 {
		b.Call("GET", "/v1/pools", "wrong", nil).ExpectProblem(401, "unauthenticated")
	}
	for _, token := range []string{"wrong", late} {
		answer := b.Call("GET", "/v1/pools", token, nil)
		answer.ExpectProblem(http.StatusTooManyRequests, "locked_out")
		if got := answer.Header.Get("Retry-After"); got != "600" {
			t.Errorf("Retry-After %q", got)
		}
	}
	b.Get("/v1/pools").Expect(200)
	b.SendReport("d-1", `{"id":"r"}`)
}

func TestWhoWasRefusedStandsInTheLog(t *testing.T) {
	t.Parallel()
	b := startWithLockout(t)
	device := b.createDevice("d-1")
	viewer := b.createToken("viewer")
	b.Call("PUT", "/v1/pools/p", viewer, `{}`).ExpectProblem(403, "forbidden")
	b.Call("GET", "/v1/pools", device, nil).ExpectProblem(403, "forbidden")
	b.Call("GET", "/v1/pools", "wrong", nil).ExpectProblem(401, "unauthenticated")
	var events struct {
		Events []struct{ Actor, Detail string }
	}
	b.Get("/v1/events?kind=access.refused&order=oldest").Expect(200).Decode(&events)
	want := [][2]string{
		{"viewer ", "at=api reason=forbidden from=127.0.0.1 left_out=0 what=putPool"},
		{"d-1", "at=api reason=forbidden from=127.0.0.1 left_out=0 what=listPools"},
		{"nobody", "at=api reason=unauthenticated from=127.0.0.1 left_out=0 what=listPools"},
	}
	if len(events.Events) != len(want) {
		t.Fatalf("events %q, want %q", events, want)
	}
	for i, e := range events.Events {
		if !strings.HasPrefix(e.Actor, want[i][0]) || e.Detail != want[i][1] {
			t.Errorf("event %q, want %q", e, want[i])
		}
	}
	b.Call("POST", "/v1/devices/d-1/report", "wrong", `{}`).ExpectProblem(401, "unauthenticated")
	metrics := string(b.Get("/metrics").Body)
	for _, want := range []string{`{at="api",reason="forbidden"} 2`, `{at="api",reason="unauthenticated"} 1`, `{at="report",reason="unauthenticated"} 1`} {
		if !strings.Contains(metrics, "dispatcher_refusals_total"+want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
}

package gate_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/store"
)

// testGate is a gate (which locks out clients that guess tokens) with a clock, a log and a ledger.
type testGate struct {
	*gate.Gate
	t      *testing.T
	now    time.Time
	log    strings.Builder
	mu     sync.Mutex
	events []store.Event
}

func (s *testGate) RecordRefusal(ctx context.Context, e store.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return ctx.Err()
}

func newTestGate(t *testing.T) *testGate {
	t.Helper()
	s := &testGate{t: t, now: time.Unix(1_800_000_000, 0)}
	s.Gate = gate.New(gate.Options{Log: slog.New(slog.NewTextHandler(&s.log, nil)), Ledger: s, Now: func() time.Time { return s.now }})
	return s
}

func (s *testGate) refuse(at gate.EntryPoint, reason gate.Reason, principal, from string, isGuess bool) {
	s.t.Helper()
	s.Refuse(s.t.Context(), gate.Refusal{EntryPoint: at, Reason: reason, Principal: principal, From: netip.MustParseAddr(from), Detail: "listPools", IsGuess: isGuess})
}

// expectLogged checks how many lines were logged and how many events were recorded since its last call.
func (s *testGate) expectLogged(lines, events int) {
	s.t.Helper()
	if got := strings.Count(s.log.String(), "msg=refused"); got != lines || len(s.events) != events {
		s.t.Errorf("%d lines and %d events, want %d and %d:\n%s%v", got, len(s.events), lines, events, s.log.String(), s.events)
	}
	s.log.Reset()
	s.events = nil
}

func TestRefusalsAreSampled(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	for range 50 {
		s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.1", false)
	}
	if log := s.log.String(); !strings.Contains(log, "principal=eve") || !strings.Contains(log, "from=192.0.2.1") || !strings.Contains(log, "reason=forbidden") {
		t.Error(log)
	}
	if e := s.events[0]; e.Actor != "eve" || !strings.Contains(e.Detail, "from=192.0.2.1") || !strings.Contains(e.Detail, "reason=forbidden") {
		t.Errorf("%+v", e)
	}
	s.expectLogged(1, 1)
	s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.2", false) // from another address
	s.expectLogged(1, 1)
	s.now = s.now.Add(time.Minute)
	s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.1", false)
	if !strings.Contains(s.log.String(), "left_out=49") {
		t.Error(s.log.String())
	}
	s.expectLogged(1, 1)
}

// TestADeviceHidesNoOperator checks a device that has the name of an operator. Its refusals are other refusals than the
// operator's, also in the log.
func TestADeviceHidesNoOperator(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	for _, isDevice := range []bool{true, false} {
		s.Refuse(t.Context(), gate.Refusal{EntryPoint: gate.API, Reason: gate.Forbidden, Principal: "eve", IsDevice: isDevice})
	}
	if len(s.events) != 2 || s.events[0].ActorKind != store.ActorDevice || s.events[1].ActorKind == store.ActorDevice {
		t.Errorf("%+v", s.events)
	}
	s.expectLogged(2, 2)
}

// TestDevicesAreNoEvents checks refused devices: they are only logged. As events, they would fill the audit log if
// a whole fleet had a wrong token.
func TestDevicesAreNoEvents(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	s.refuse(gate.Report, gate.Unauthenticated, "ar-7", "192.0.2.1", false)
	s.refuse(gate.Broker, gate.Forbidden, "ar-7", "192.0.2.1", false)
	s.expectLogged(2, 0)
	s.refuse(gate.SignIn, gate.Unauthenticated, "", "192.0.2.1", true)
	if s.events[0].Actor != "nobody" {
		t.Errorf("%+v", s.events)
	}
	s.expectLogged(1, 1)
}

// TestManyWhoGuessHideNobody checks a refusal of a known operator: it is logged even if clients that guess tokens
// fill the samples of the log.
func TestManyWhoGuessHideNobody(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	for i := range 500 {
		s.refuse(gate.API, gate.Unauthenticated, "", fmt.Sprintf("10.0.%d.%d", i/250, i%250), true)
	}
	s.expectLogged(30, 30)
	s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.1", false)
	s.expectLogged(1, 1)
	s.now = s.now.Add(time.Minute)
	s.refuse(gate.API, gate.Unauthenticated, "", "192.0.2.9", true)
	if !strings.Contains(s.log.String(), "left_out=470") {
		t.Error(s.log.String())
	}
}

func TestWrongTokensLockAnAddressOut(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	from, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	s.RecordAccepted(from, "good")
	for range 9 {
		s.refuse(gate.API, gate.Unauthenticated, "", from.String(), true)
	}
	s.refuse(gate.API, gate.Unauthenticated, "", from.String(), false) // a request without a token is not a guess
	if wait := s.LockoutLeft(from, "x"); wait != 0 {
		t.Errorf("waits %v after nine", wait)
	}
	s.expectLogged(1, 1)
	s.refuse(gate.SignIn, gate.Unauthenticated, "", from.String(), true) // counts together with the guesses at the API
	s.expectLogged(2, 2)                                                 // the second one is about the lock-out
	for token, want := range map[string]time.Duration{"x": 10 * time.Minute, "": 10 * time.Minute, "good": 0} {
		if wait := s.LockoutLeft(from, token); wait != want {
			t.Errorf("waits %v with %q, want %v", wait, token, want)
		}
	}
	if wait := s.LockoutLeft(other, "x"); wait != 0 {
		t.Errorf("another address waits %v", wait)
	}
	s.now = s.now.Add(10 * time.Minute)
	if wait := s.LockoutLeft(from, "x"); wait != 0 {
		t.Errorf("waits %v afterwards", wait)
	}
}

// TestATokenIsGoodForAnHour checks a token that was accepted from an address. If this address is then locked out,
// the token stays usable from it for an hour.
func TestATokenIsGoodForAnHour(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	from := netip.MustParseAddr("192.0.2.1")
	s.RecordAccepted(from, "good")
	s.now = s.now.Add(time.Hour - time.Minute)
	for range 10 {
		s.refuse(gate.API, gate.Unauthenticated, "", from.String(), true)
	}
	for _, want := range []time.Duration{0, 9 * time.Minute} {
		if wait := s.LockoutLeft(from, "good"); wait != want {
			t.Errorf("waits %v, want %v", wait, want)
		}
		s.now = s.now.Add(time.Minute)
	}
}

// TestAStrangersTextIsBounded checks text from an unknown client: in the log it is shortened and made valid.
func TestAStrangersTextIsBounded(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	s.refuse(gate.API, gate.Forbidden, strings.Repeat("\xffé\x00", 10_000), "192.0.2.1", false)
	if e := s.events[0]; len(e.Actor) > 512 || strings.ContainsRune(e.Actor, 0) || strings.ToValidUTF8(e.Actor, "") != e.Actor {
		t.Errorf("%q", e.Actor)
	}
}

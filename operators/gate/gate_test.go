package gate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
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

func (s *testGate) refuse(entryPoint gate.EntryPoint, reason gate.Reason, principal, clientAddr string) {
	s.t.Helper()
	s.CountRefusal(s.t.Context(), gate.Refusal{EntryPoint: entryPoint, Reason: reason, Principal: principal, From: netip.MustParseAddr(clientAddr), Detail: "listPools"})
}

// tryToken presents a token from an address. Tokens that begin with "good" are known, and all others are unknown. tryToken returns how long
// the address is locked out, or -1 if the token was looked up and is unknown.
func (s *testGate) tryToken(entryPoint gate.EntryPoint, clientAddr, token string) time.Duration {
	s.t.Helper()
	lockout, err := s.CheckToken(s.t.Context(), gate.Attempt{EntryPoint: entryPoint, From: netip.MustParseAddr(clientAddr), Token: token}, func(context.Context) error {
		if strings.HasPrefix(token, "good") {
			return nil
		}
		return devices.ErrUnauthenticated
	})
	if err != nil {
		return -1
	}
	return lockout
}

// expectLogged checks how many lines were logged and how many events were recorded since its last call.
func (s *testGate) expectLogged(logLines, events int) {
	s.t.Helper()
	if got := strings.Count(s.log.String(), "msg=refused"); got != logLines || len(s.events) != events {
		s.t.Errorf("%d lines and %d events, want %d and %d:\n%s%v", got, len(s.events), logLines, events, s.log.String(), s.events)
	}
	s.log.Reset()
	s.events = nil
}

func TestRefusalsAreSampled(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	for range 50 {
		s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.1")
	}
	if log := s.log.String(); !strings.Contains(log, "principal=eve") || !strings.Contains(log, "from=192.0.2.1") || !strings.Contains(log, "reason=forbidden") {
		t.Error(log)
	}
	if e := s.events[0]; e.Actor != "eve" || !strings.Contains(e.Detail, "from=192.0.2.1") || !strings.Contains(e.Detail, "reason=forbidden") {
		t.Errorf("%+v", e)
	}
	s.expectLogged(1, 1)
	s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.2") // from another address
	s.expectLogged(1, 1)
	s.now = s.now.Add(time.Minute)
	s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.1")
	if !strings.Contains(s.log.String(), "left_out=49") {
		t.Error(s.log.String())
	}
	s.expectLogged(1, 1)
}

// TestADeviceHidesNoOperator refuses a device and an operator with the same name. Both refusals must be logged and recorded, as different
// principals.
func TestADeviceHidesNoOperator(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	for _, isDevice := range []bool{true, false} {
		s.CountRefusal(t.Context(), gate.Refusal{EntryPoint: gate.API, Reason: gate.Forbidden, Principal: "eve", IsDevice: isDevice})
	}
	if len(s.events) != 2 || s.events[0].ActorKind != store.ActorDevice || s.events[1].ActorKind == store.ActorDevice {
		t.Errorf("%+v", s.events)
	}
	s.expectLogged(2, 2)
}

// TestDevicesAreNoEvents checks that refusals of devices are logged and not recorded as events. Otherwise a fleet with a wrong token would
// fill the audit log.
func TestDevicesAreNoEvents(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	s.refuse(gate.Report, gate.Unauthenticated, "ar-7", "192.0.2.1")
	s.refuse(gate.Broker, gate.Forbidden, "ar-7", "192.0.2.1")
	s.expectLogged(2, 0)
	s.refuse(gate.SignIn, gate.Unauthenticated, "", "192.0.2.1")
	if s.events[0].Actor != "nobody" {
		t.Errorf("%+v", s.events)
	}
	s.expectLogged(1, 1)
}

// TestManyWhoGuessHideNobody checks that a refusal of a known operator is logged even if so many wrong tokens are refused that the log leaves
// some of them out.
func TestManyWhoGuessHideNobody(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	for i := range 500 {
		s.refuse(gate.API, gate.Unauthenticated, "", fmt.Sprintf("10.0.%d.%d", i/250, i%250))
	}
	s.expectLogged(30, 30)
	s.refuse(gate.API, gate.Forbidden, "eve", "192.0.2.1")
	s.expectLogged(1, 1)
	s.now = s.now.Add(time.Minute)
	s.refuse(gate.API, gate.Unauthenticated, "", "192.0.2.9")
	if !strings.Contains(s.log.String(), "left_out=470") {
		t.Error(s.log.String())
	}
}

func TestWrongTokensLockAnAddressOut(t *testing.T) {
	t.Parallel()
	const from, other = "192.0.2.1", "192.0.2.2"
	s := newTestGate(t)
	s.tryToken(gate.API, from, "good")
	for range 9 {
		s.tryToken(gate.API, from, "x")
	}
	s.tryToken(gate.API, from, "") // a request without a token is not a guess
	s.expectLogged(0, 0)
	if wait := s.tryToken(gate.SignIn, from, "x"); wait != -1 { // counts together with the guesses at the API
		t.Errorf("waits %v after nine", wait)
	}
	s.expectLogged(1, 1) // the lock-out
	for _, test := range []struct {
		at    gate.EntryPoint
		token string
		want  time.Duration
	}{{gate.API, "x", 10 * time.Minute}, {gate.API, "", 10 * time.Minute}, {gate.API, "good, but new", 10 * time.Minute}, {gate.API, "good", 0}, {gate.SignIn, "good", 10 * time.Minute}} {
		if wait := s.tryToken(test.at, from, test.token); wait != test.want {
			t.Errorf("waits %v with %q at %s, want %v", wait, test.token, test.at, test.want)
		}
	}
	if wait := s.tryToken(gate.API, other, "x"); wait != -1 {
		t.Errorf("another address waits %v", wait)
	}
	s.now = s.now.Add(10 * time.Minute)
	if wait := s.tryToken(gate.API, from, "x"); wait != -1 {
		t.Errorf("waits %v afterwards", wait)
	}
}

// TestGuessesAtOnceLockAnAddressOut sends 150 wrong tokens at the same time. Only ten must be looked up. All others must be refused.
func TestGuessesAtOnceLockAnAddressOut(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	var group sync.WaitGroup
	var lookedUp, refused atomic.Int64
	for range 150 {
		group.Go(func() {
			lockout, _ := s.CheckToken(t.Context(), gate.Attempt{EntryPoint: gate.API, From: netip.MustParseAddr("192.0.2.1"), Token: "x"}, func(context.Context) error {
				lookedUp.Add(1)
				runtime.Gosched()
				return devices.ErrUnauthenticated
			})
			if lockout > 0 {
				refused.Add(1)
			}
		})
	}
	group.Wait()
	if lookedUp.Load() != 10 || refused.Load() != 140 {
		t.Errorf("%d guesses looked up and %d refused, want 10 and 140", lookedUp.Load(), refused.Load())
	}
}

// TestAGuessThatBreaksOffGivesItsTurnBack lets a client disconnect while it waits for the look-up of another token. Its own token must not
// be looked up, and later tokens must still be looked up.
func TestAGuessThatBreaksOffGivesItsTurnBack(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	attempt := gate.Attempt{EntryPoint: gate.API, From: netip.MustParseAddr("192.0.2.1"), Token: "x"}
	_, err := s.CheckToken(t.Context(), attempt, func(context.Context) error {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.CheckToken(gone, attempt, func(context.Context) error { t.Error("looked up"); return nil })
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if wait := s.tryToken(gate.API, "192.0.2.1", "good"); wait != 0 {
		t.Errorf("waits %v", wait)
	}
}

// TestManyGuessersForgetNoLockout locks an address out. Then more addresses send wrong tokens than are remembered. The lock-out must stay.
func TestManyGuessersForgetNoLockout(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	for range 10 {
		s.tryToken(gate.API, "192.0.2.1", "x")
	}
	for i := range 25_000 {
		s.tryToken(gate.API, fmt.Sprintf("10.%d.%d.1", i/250, i%250), "x")
	}
	if wait := s.tryToken(gate.API, "192.0.2.1", "x"); wait != 10*time.Minute {
		t.Errorf("waits %v, want 10 m", wait)
	}
}

// TestATokenIsGoodForAnHour checks a token that was accepted from an address. If this address is then locked out,
// the token stays usable from it for an hour.
func TestATokenIsGoodForAnHour(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	const from = "192.0.2.1"
	s.tryToken(gate.API, from, "good")
	s.now = s.now.Add(time.Hour - time.Minute)
	for range 10 {
		s.tryToken(gate.API, from, "x")
	}
	for _, want := range []time.Duration{0, 9 * time.Minute} {
		if wait := s.tryToken(gate.API, from, "good"); wait != want {
			t.Errorf("waits %v, want %v", wait, want)
		}
		s.now = s.now.Add(time.Minute)
	}
}

// TestAStrangersTextIsBounded checks text from an unknown client: in the log it is shortened and made valid.
func TestAStrangersTextIsBounded(t *testing.T) {
	t.Parallel()
	s := newTestGate(t)
	s.refuse(gate.API, gate.Forbidden, strings.Repeat("\xffé\x00", 10_000), "192.0.2.1")
	if e := s.events[0]; len(e.Actor) > 512 || strings.ContainsRune(e.Actor, 0) || strings.ToValidUTF8(e.Actor, "") != e.Actor {
		t.Errorf("%q", e.Actor)
	}
}

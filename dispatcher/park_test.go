package dispatcher_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/parked"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	long     = time.Hour   // a wait that no test sees the end of
	patience = time.Minute // what no machine reaches that only stands still for a while
)

// waiting is a report whose answer may be held.
type waiting struct {
	t      *testing.T
	caller dispatcher.Caller
	parked chan struct{} // closed when it is
	answer chan answered
	leave  context.CancelFunc // the device closes its connection
}

type answered struct {
	devices.Reply
	held bool
	err  error
}

// wait sends a report that lets its answer wait.
func (b *bench) wait(t *testing.T, d *dispatcher.Dispatcher, caller dispatcher.Caller, body string, wait time.Duration) *waiting {
	t.Helper()
	report, err := devices.DecodeReport([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(b.ctx)
	w := &waiting{t: t, caller: caller, parked: make(chan struct{}), answer: make(chan answered, 1), leave: leave}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reply, held, err := d.Wait(ctx, caller, report, wait, func() { close(w.parked) })
		w.answer <- answered{reply, held, err}
	}()
	t.Cleanup(func() {
		leave()
		<-ended
	})
	return w
}

func fleetCaller(device string) dispatcher.Caller {
	return dispatcher.Caller{Device: devices.ID(device), Via: dispatcher.ViaFleetToken}
}

// parks sends a report that must be parked.
func (b *bench) parks(t *testing.T, device string) *waiting {
	t.Helper()
	w := b.wait(t, b.Dispatcher, fleetCaller(device), `{"id":"`+device+`-waits"}`, long)
	w.isParked()
	return w
}

func (w *waiting) isParked() {
	w.t.Helper()
	select {
	case <-w.parked:
	case a := <-w.answer:
		w.t.Fatalf("%s: answered %+v, want it parked", w.caller.Device, a)
	case <-time.After(patience):
		w.t.Fatalf("%s: never parked", w.caller.Device)
	}
}

func (w *waiting) answered() answered {
	w.t.Helper()
	select {
	case a := <-w.answer:
		if a.err != nil {
			w.t.Fatalf("%s: %v", w.caller.Device, a.err)
		}
		return a
	case <-time.After(patience):
		w.t.Fatalf("%s: never answered", w.caller.Device)
		return answered{}
	}
}

func (w *waiting) stillParked() {
	w.t.Helper()
	select {
	case a := <-w.answer:
		w.t.Fatalf("%s: answered %+v, want it to wait on", w.caller.Device, a)
	default:
	}
}

// wake tells a replica that a place of pool "a" is offered to the device.
func wake(d *dispatcher.Dispatcher, device string) {
	d.Parked().Called([]parked.Call{{Device: device, Pool: "a"}})
}

// The place that one device leaves is the next one's, whose report is parked.
func TestParkedReportIsGrantedWhatIsLeft(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		t := b.t.(*testing.T) //nolint:forcetypeassert,errcheck // no benchmark
		b.pool("a", 1, minute)
		b.batch("a", nil, "d1", "d2")
		first := b.granted("d1")
		w := b.parks(t, "d2")
		b.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
		a := w.answered()
		if a.Reason != devices.ReasonGranted || a.Task == nil || a.Re != "d2-waits" || !a.held || a.HeldMS < 0 {
			t.Fatalf("%+v, want a grant", a)
		}
		b.expectHeld(1)
		b.ended("d2", *a.Task, "succeeded", "", devices.OutcomeRecorded)
	}, keepingOffers)
}

// What came before the wait was made true before it, and is in the answer.
// So it is when its report is parked at another replica than the one that frees
// the place.
func TestParkedReportElsewhereIsGrantedWhatIsLeft(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		t := b.t.(*testing.T) //nolint:forcetypeassert,errcheck // no benchmark
		other := b.replica(t)
		b.pool("a", 1, minute)
		b.batch("a", nil, "d1", "d2")
		first := b.granted("d1")
		w := b.wait(t, other, fleetCaller("d2"), `{"id":"x"}`, long)
		w.isParked()
		b.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
		if a := w.answered(); a.Task == nil || a.Re != "x" {
			t.Errorf("%+v, want a grant", a)
		}
	})
}

// keepingOffers lets no place be given up only because the machine stands still.
func keepingOffers(c *dispatcher.Config) { c.OfferLeast, c.OfferMost = minute, minute }

func TestParkedReportKeepsItsAcks(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1")
	g := b.granted("d1")
	w := b.wait(t, b.Dispatcher, fleetCaller("d1"), result(g, "succeeded", ""), long)
	w.isParked()
	b.expectState(g.ID, store.Succeeded)
	b.expectHeld(0)
	b.batch("a", nil, "d1")
	wake(b.Dispatcher, "d1")
	a := w.answered()
	if len(a.Acks) != 1 || a.Acks[0].Outcome != devices.OutcomeRecorded || a.Acks[0].Token != g.Token || a.Task == nil || a.Task.ID == g.ID {
		t.Errorf("%+v, want the result acknowledged and the next task", a)
	}
}

// spies watch the stores of a dispatcher, and come between its steps.
type spies struct {
	dispatcher.Store
	dispatcher.Semaphore
	acquired atomic.Int64           // acquires that were answered
	longest  atomic.Int64           // of the last pace
	viewed   atomic.Pointer[func()] // called after each reading of the device
	claimed  func()                 // called before each claim
	answered func()                 // called after each acquire
}

func (s *spies) Acquire(ctx context.Context, pool string, pace slots.Pace, r []slots.Request) ([]slots.Acquisition, []slots.Offer, error) {
	got, offers, err := s.Semaphore.Acquire(ctx, pool, pace, r)
	s.longest.Store(int64(pace.Longest))
	s.acquired.Add(1)
	if s.answered != nil {
		s.answered()
	}
	return got, offers, err
}

func (s *spies) Views(ctx context.Context, devices []string) ([]store.View, error) {
	views, err := s.Store.Views(ctx, devices)
	if viewed := s.viewed.Load(); viewed != nil {
		(*viewed)()
	}
	return views, err
}

func (s *spies) Claim(ctx context.Context, claims []store.Claim) ([]store.ClaimOutcome, error) {
	if s.claimed != nil {
		s.claimed()
	}
	return s.Store.Claim(ctx, claims)
}

// spied is a bench on embedded stores with spies.
func spied(t *testing.T, changes ...func(*dispatcher.Config)) (*bench, *spies) {
	t.Helper()
	s := &spies{}
	return embedded(t, append(changes, func(c *dispatcher.Config) {
		s.Store, s.Semaphore = c.Store, c.Semaphore
		c.Store, c.Semaphore = s, s
	})...), s
}

func TestParkedReportWaitsOnWithoutAGrant(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1", "d2")
	first := b.granted("d1")
	w := b.parks(t, "d2")
	for range 3 { // another was faster, each time
		before := spies.acquired.Load()
		wake(b.Dispatcher, "d2")
		eventually(t, "the look", func() bool { return spies.acquired.Load() > before })
		w.stillParked()
	}
	b.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
	wake(b.Dispatcher, "d2")
	if a := w.answered(); a.Task == nil {
		t.Errorf("%+v, want the grant at last", a)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// A line forgets who does not come for a report period: not who is parked.
func TestLineExpectsAParkedReportAfterItsWait(t *testing.T) {
	t.Parallel()
	b, spies := spied(t, func(c *dispatcher.Config) { c.ReportPeriod = time.Second })
	b.pool("a", 0, minute)
	b.batch("a", nil, "d1")
	b.expectReason("d1", `{}`, devices.ReasonFull)
	if got := time.Duration(spies.longest.Load()); got != time.Second {
		t.Errorf("a report that does not wait: again within %s, want 1 s", got)
	}
	b.parks(t, "d1")
	if got := time.Duration(spies.longest.Load()); got != long {
		t.Errorf("a parked report: again within %s, want %s", got, long)
	}
}

// What comes between the look at the pool and the wait is not missed.
func TestWakeBeforeTheWaitIsNotLost(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1", "d2")
	first := b.granted("d1")
	var once sync.Once
	spies.answered = func() {
		once.Do(func() {
			b.ended("d1", first, "succeeded", "", devices.OutcomeRecorded)
			wake(b.Dispatcher, "d2")
		})
	}
	w := b.wait(t, b.Dispatcher, fleetCaller("d2"), `{"id":"x"}`, long)
	if a := w.answered(); a.Task == nil {
		t.Errorf("%+v, want a grant", a)
	}
}

// The lease is counted from when the report was sent plus held_ms: so that is
// the time before the claim, however long the claim takes.
func TestHeldTimeIsOverBeforeTheLeaseBegins(t *testing.T) {
	t.Parallel()
	var elapsed atomic.Int64
	start := time.Now()
	b, spies := spied(t, func(c *dispatcher.Config) {
		c.Now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
	})
	b.pool("a", 1, minute)
	w := b.parks(t, "d1")
	b.batch("a", nil, "d1")
	elapsed.Store(int64(7 * time.Second))
	spies.claimed = func() { elapsed.Add(int64(2 * time.Second)) }
	wake(b.Dispatcher, "d1")
	if a := w.answered(); a.Task == nil || a.HeldMS != 7000 {
		t.Errorf("%+v, want a grant after 7000 ms", a)
	}
}

func TestEndOfTheWait(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("a", 0, minute)
	b.batch("a", nil, "d1")
	for device, want := range map[string]devices.Reason{"d1": devices.ReasonFull, "d2": devices.ReasonNone} {
		w := b.wait(t, b.Dispatcher, fleetCaller(device), `{"id":"x"}`, 50*time.Millisecond)
		w.isParked()
		a := w.answered()
		if a.Reason != want || a.Re != "x" || a.HeldMS < 50 || a.ReportAfterMS != 125 { // half of 250: the tests' jitter
			t.Errorf("%s: %+v, want %s after 50 ms, and to come again in 125 ms", device, a, want)
		}
	}
}

// What waiting does not change is answered at once.
func TestWhatIsNotParked(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1", "d2", "d3")
	_, err := b.store.EnsureDevice(b.ctx, "blocked")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.SetBlocked(b.ctx, "test", "blocked", true); err != nil {
		t.Fatal(err)
	}
	g := b.granted("d1")
	for _, test := range []struct {
		device, body string
		want         devices.Reason
	}{
		{"d1", running(g), devices.ReasonBusy},
		{"d1", `{"id":"again"}`, devices.ReasonGranted}, // delivered again
		{"d2", `{"accept":false}`, devices.ReasonDeclined},
		{"d2", `{"running":[{"task":1000,"token":7}]}`, devices.ReasonBusy}, // it is to stop first
		{"blocked", `{}`, devices.ReasonBlocked},
	} {
		w := b.wait(t, b.Dispatcher, fleetCaller(test.device), test.body, long)
		a := w.answered()
		if a.Reason != test.want || !a.held || a.HeldMS != 0 {
			t.Errorf("%s %s: %+v, want %s", test.device, test.body, a, test.want)
		}
		select {
		case <-w.parked:
			t.Errorf("%s %s: it was parked", test.device, test.body)
		default:
		}
	}
}

func TestNewestReportOfADeviceWins(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("a", 1, minute)
	for name, newer := range map[string]func(device string){
		"parked":         func(device string) { b.parks(t, device) },
		"answered":       func(device string) { b.expectReason(device, `{}`, devices.ReasonNone) },
		"reporting only": func(device string) { b.expectReason(device, `{"accept":false}`, devices.ReasonDeclined) },
	} {
		device := strings.ReplaceAll(name, " ", "-")
		older := b.parks(t, device)
		newer(device)
		if a := older.answered(); a.Reason != devices.ReasonNone || a.Re != device+"-waits" || a.ReportAfterMS < 1000 {
			t.Errorf("%s: the older report got %+v, want none, and no haste", name, a)
		}
	}
	b.batch("a", nil, "parked")
	wake(b.Dispatcher, "parked")
}

// A grant to an older report that nobody waits for any more is not lost: the
// newer one, which was looked at before that, is told of it.
func TestGrantToAnOlderReportReachesTheNewer(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	older := b.parks(t, "d1")
	b.batch("a", nil, "d1")
	var newer *waiting
	var once sync.Once
	spies.claimed = func() {
		once.Do(func() {
			// The newer one is refused: the older has the place, and not the grant.
			newer = b.parks(t, "d1")
		})
	}
	wake(b.Dispatcher, "d1")
	first := older.answered()
	if first.Task == nil {
		t.Fatalf("%+v, want a grant", first)
	}
	a := newer.answered()
	if a.Task == nil || a.Task.Token != first.Task.Token || a.Task.Redelivered != 1 {
		t.Errorf("the newer report got %+v, want the grant %d again", a, first.Task.Token)
	}
}

func TestStopAnswersAllThatWait(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("a", 0, minute)
	b.batch("a", nil, "d1")
	full, none := b.parks(t, "d1"), b.parks(t, "d2")
	b.StopWaiting()
	for w, want := range map[*waiting]devices.Reason{full: devices.ReasonFull, none: devices.ReasonNone} {
		if a := w.answered(); a.Reason != want || a.ReportAfterMS != 2500 { // half of 5 s: the tests' jitter
			t.Errorf("%s: %+v, want %s, and to come again in 2500 ms", w.caller.Device, a, want)
		}
	}
	if a := b.wait(t, b.Dispatcher, fleetCaller("d3"), `{}`, long).answered(); a.held || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("after the stop: %+v, want it answered at once", a)
	}
}

// Nothing is granted to a device that has gone: neither when that is known
// before the look, nor when it is found out during it.
func TestNothingIsGrantedToWhoHasGone(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 2, minute)
	before, during := b.parks(t, "before"), b.parks(t, "during")
	b.batch("a", nil, "before", "during")
	before.leave()
	before.answered()
	wake(b.Dispatcher, "before")
	leave := func() { during.leave() }
	spies.viewed.Store(&leave)
	wake(b.Dispatcher, "during")
	during.answered()
	spies.viewed.Store(nil)
	b.expectHeld(0)
	b.granted("before")
	b.granted("during")
}

func TestLostAnswerOfAParkedReportIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		t := b.t.(*testing.T) //nolint:forcetypeassert,errcheck // no benchmark
		b.pool("a", 1, minute)
		w := b.parks(t, "d1")
		b.batch("a", nil, "d1")
		wake(b.Dispatcher, "d1")
		lost := w.answered()
		again := b.wait(t, b.Dispatcher, fleetCaller("d1"), `{"id":"again"}`, long).answered()
		if lost.Task == nil || again.Task == nil || again.Task.Token != lost.Task.Token || again.Task.Redelivered != 1 || again.Re != "again" {
			t.Errorf("%+v after %+v, want the same grant", again, lost)
		}
		b.expectHeld(1)
	})
}

func TestRoomForParkedReportsIsBounded(t *testing.T) {
	t.Parallel()
	b := embedded(t, func(c *dispatcher.Config) { c.MaxParked = 2 })
	one := b.parks(t, "d1")
	b.parks(t, "d2")
	if a := b.wait(t, b.Dispatcher, fleetCaller("d3"), `{}`, long).answered(); a.held || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("the third: %+v, want it answered as one that does not wait", a)
	}
	b.parks(t, "d1") // instead of its older one
	one.answered()
	b.expectReason("d1", `{}`, devices.ReasonNone)
	b.parks(t, "d3")
}

// Who may not report any more is granted nothing, though it may still wait.
func TestParkedReportOfWhoMayNotReportAnyMore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(b *bench) error
		want devices.Reason
	}{
		"token revoked": {func(b *bench) error {
			_, _, err := b.RotateToken(b.ctx, "test", "d1", 0)
			return err
		}, devices.ReasonNone},
		"blocked": {func(b *bench) error { return b.SetBlocked(b.ctx, "test", "d1", true) }, devices.ReasonBlocked},
		"deleted": {func(b *bench) error {
			_, err := b.DeleteDevice(b.ctx, "test", "d1", true)
			return err
		}, devices.ReasonNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var elapsed atomic.Int64
			start := time.Now()
			b := embedded(t, func(c *dispatcher.Config) {
				c.Now = func() time.Time { return start.Add(time.Duration(elapsed.Load())) }
			})
			b.pool("a", 1, minute)
			_, token, err := b.CreateDevice(b.ctx, "test", "d1", store.DeviceSpec{})
			if err != nil {
				t.Fatal(err)
			}
			caller, err := b.Authenticate(b.ctx, "d1", token)
			if err != nil {
				t.Fatal(err)
			}
			w := b.wait(t, b.Dispatcher, caller, `{}`, long)
			w.isParked()
			if err := test.end(b); err != nil {
				t.Fatal(err)
			}
			b.batch("a", nil, "d1")
			elapsed.Store(int64(time.Minute)) // what is remembered of tokens is over
			wake(b.Dispatcher, "d1")
			if a := w.answered(); a.Reason != test.want || a.Task != nil {
				t.Errorf("%+v, want %s", a, test.want)
			}
			b.expectHeld(0)
		})
	}
}

// Trouble during the look is said, and nothing is granted.
func TestParkedReportWhenTheLedgerIsAway(t *testing.T) {
	t.Parallel()
	b, ledger, _ := faulty(t)
	w := b.parks(t, "d1")
	ledger.viewsDown.Store(true)
	wake(b.Dispatcher, "d1")
	if a := w.answered(); a.Reason != devices.ReasonUnavailable || a.Re != "d1-waits" {
		t.Errorf("%+v, want unavailable", a)
	}
}

// lostBoard is a Redis that does not answer.
type lostBoard struct{}

func (lostBoard) Newest(context.Context, string, time.Duration) (int64, bool, error) {
	return 0, false, errDown
}

func (lostBoard) Gone(context.Context, []parked.Report) ([]parked.Report, error) { return nil, errDown }
func (lostBoard) Wake(context.Context, []parked.Call) error                      { return errDown }

// Whose older reports cannot be ended is not parked.
func TestNothingIsParkedWithoutTheOtherReplicas(t *testing.T) {
	t.Parallel()
	b := embedded(t, func(c *dispatcher.Config) { c.Parking = lostBoard{} })
	a := b.wait(t, b.Dispatcher, fleetCaller("d1"), `{}`, long).answered()
	if a.held || a.Reason != devices.ReasonNone || a.ReportAfterMS < 1000 {
		t.Errorf("%+v, want it answered as one that does not wait", a)
	}
}

// replica is another dispatcher on the stores of a bench; both know of each
// other's parked reports.
func (b *bench) replica(t *testing.T) *dispatcher.Dispatcher {
	t.Helper()
	var other *dispatcher.Dispatcher
	b.Dispatcher = b.parking(t)
	other = b.parking(t)
	return other
}

func (b *bench) parking(t *testing.T, changes ...func(*dispatcher.Config)) *dispatcher.Dispatcher {
	t.Helper()
	board := parked.New(b.redis)
	config := dispatcher.Config{
		Store: b.store, Semaphore: b.semaphore, Parking: board, FleetTokens: []string{"fleet-token-of-the-tests"}, Jitter: func() float64 { return 0.5 },
		OfferLeast: minute, OfferMost: minute,
	}
	for _, change := range changes {
		change(&config)
	}
	d := dispatcher.New(config)
	ctx, stop := context.WithCancel(context.WithoutCancel(b.ctx))
	hears, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		board.Listen(ctx, d.Parked(), func() { hears <- struct{}{} })
	}()
	t.Cleanup(func() {
		if err := d.StopHandingOn(context.Background()); err != nil {
			t.Error(err)
		}
		stop()
		<-ended
	})
	select {
	case <-hears:
	case <-time.After(patience):
		t.Fatal("the replica hears nothing")
	}
	return d
}

func TestNewestReportWinsOverReplicas(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		t := b.t.(*testing.T) //nolint:forcetypeassert,errcheck // no benchmark
		other := b.replica(t)
		b.pool("a", 1, minute)
		replicas := []*dispatcher.Dispatcher{b.Dispatcher, other}
		var older *waiting
		for n := range 6 {
			w := b.wait(t, replicas[n%2], fleetCaller("d1"), fmt.Sprintf(`{"id":"%d"}`, n), long)
			w.isParked()
			if older != nil {
				if a := older.answered(); a.Reason != devices.ReasonNone || a.Re != strconv.Itoa(n-1) {
					t.Errorf("%+v, want none for report %d", a, n-1)
				}
			}
			older = w
		}
		older.stillParked()
		b.batch("a", nil, "d1")
		wake(other, "d1")
		if a := older.answered(); a.Task == nil {
			t.Errorf("the newest: %+v, want a grant", a)
		}
	})
}

package dispatcher_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/store"
)

const (
	long     = time.Hour   // a wait that ends after every test
	patience = time.Minute // a timeout that is longer than a temporary stall of the machine
)

// pendingReport is a report that was sent and may be parked (answered later).
type pendingReport struct {
	t          testing.TB
	caller     devices.Caller
	parked     chan struct{} // closed when the report is parked
	answers    chan reportAnswer
	disconnect context.CancelFunc // closes the connection of the device
}

type reportAnswer struct {
	devices.Reply
	wasParked bool
	err       error
}

// startReport sends a report to the dispatcher d. The report may be parked for at most the time wait.
func (b *testBench) startReport(d *dispatcher.Dispatcher, caller devices.Caller, body string, wait time.Duration) *pendingReport {
	b.t.Helper()
	report, err := devices.DecodeReport([]byte(body))
	b.must(err)
	ctx, leave := context.WithCancel(b.ctx)
	w := &pendingReport{t: b.t, caller: caller, parked: make(chan struct{}), answers: make(chan reportAnswer, 1), disconnect: leave}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reply, held, err := d.HandleWaiting(ctx, caller, report, wait, func() { close(w.parked) })
		w.answers <- reportAnswer{reply, held, err}
	}()
	b.t.Cleanup(func() {
		leave()
		<-ended
	})
	return w
}

func fleetCaller(device string) devices.Caller {
	return devices.Caller{Device: devices.ID(device), Via: devices.ViaFleetToken}
}

// parkReport sends a report of the device and waits until the dispatcher has parked it.
func (b *testBench) parkReport(device string) *pendingReport {
	b.t.Helper()
	w := b.startReport(b.Dispatcher, fleetCaller(device), `{"id":"`+device+`-waits"}`, long)
	w.awaitParked()
	return w
}

func (w *pendingReport) awaitParked() {
	w.t.Helper()
	select {
	case <-w.parked:
	case a := <-w.answers:
		w.t.Fatalf("%s: answered %+v, want it parked", w.caller.Device, a)
	case <-time.After(patience):
		w.t.Fatalf("%s: never parked", w.caller.Device)
	}
}

func (w *pendingReport) awaitAnswer() reportAnswer {
	w.t.Helper()
	a := await.Receive(w.t, w.answers, fmt.Sprintf("%s: never answered", w.caller.Device))
	if a.err != nil {
		w.t.Fatalf("%s: %v", w.caller.Device, a.err)
	}
	return a
}

// awaitGrant waits until the report is answered with a grant. If a slow machine claimed the slot too late, the device
// reports again.
func (b *testBench) awaitGrant(w *pendingReport) reportAnswer {
	b.t.Helper()
	a := w.awaitAnswer()
	if a.Reason == devices.ReasonUnavailable {
		task := b.expectGrant(string(w.caller.Device))
		a.Task = &task
	}
	if a.Task == nil {
		b.t.Fatalf("%s: answered %+v, want a grant", w.caller.Device, a)
	}
	return a
}

func (w *pendingReport) expectStillParked() {
	w.t.Helper()
	select {
	case a := <-w.answers:
		w.t.Fatalf("%s: answered %+v, want it to wait on", w.caller.Device, a)
	default:
	}
}

// notifyOffer notifies the dispatcher d that a slot of pool "a" is offered to the device.
func notifyOffer(d *dispatcher.Dispatcher, device string) {
	d.Waiters.ParkedReports.OnWake([]parked.WakeMessage{{Device: device, Pool: "a"}})
}

// withMinuteOffers makes offers last for a minute, so that no offer lapses because the machine stalls.
func withMinuteOffers(c *dispatcher.Config) { c.Offer = minute }

// addParkingReplica adds another dispatcher (a replica) to the bench. It uses the same stores, and both dispatchers
// send each other messages about parked reports.
func (b *testBench) addParkingReplica() *dispatcher.Dispatcher {
	b.t.Helper()
	b.Dispatcher = b.newParkingReplica()
	return b.newParkingReplica()
}

func (b *testBench) newParkingReplica(changes ...func(*dispatcher.Config)) *dispatcher.Dispatcher {
	b.t.Helper()
	board := parked.New(b.redis, b.redisDatabase)
	config := dispatcher.Config{
		Store: b.store, Semaphore: b.semaphore, Parking: board, FleetTokens: []string{"fleet-token-of-the-tests"}, Jitter: func() float64 { return 0.5 },
		Offer: minute,
	}
	for _, change := range changes {
		change(&config)
	}
	d := dispatcher.New(config)
	ctx, stop := context.WithCancel(context.WithoutCancel(b.ctx))
	hears, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		board.Listen(ctx, d.Waiters.ParkedReports, func() { hears <- struct{}{} })
	}()
	b.t.Cleanup(func() {
		if err := d.Waiters.Stop(context.Background()); err != nil {
			b.t.Error(err)
		}
		stop()
		<-ended
	})
	await.Receive(b.t, hears, "the replica hears nothing")
	return d
}

// A waiting device is asked to report after more than one period. Until then it must not count as silent. The pool's setting of the longest
// sleep must reach the queue.
func TestAWaitingDeviceIsAskedToSleep(t *testing.T) {
	t.Parallel()
	b := newServerBench(t, func(c *dispatcher.Config) { c.ReportPeriod = time.Second })
	b.createPool("a", 1, minute)
	_, err := b.store.ChangePool(b.ctx, "op", "a", "", func(s *store.PoolSpec) error {
		s.Sleep = 7 * minute
		return nil
	})
	b.must(err)
	b.reconcile()
	if got := b.Waiters.Pools.Pace("a").LongestSleep; got != 7*minute {
		b.t.Errorf("longest sleep %s, want 7 min", got)
	}
	b.createBatch("a", nil, "first", "second", "third", "fourth")
	b.expectGrant("first")
	b.expectReason("second", `{}`, devices.ReasonFull)
	b.expectReason("third", `{}`, devices.ReasonFull)
	reply := b.expectReason("fourth", `{}`, devices.ReasonFull)
	last := b.Seen.LastReport("fourth")
	want := last.At.Add(time.Duration(reply.ReportAfterMS)*time.Millisecond - time.Second)
	if !last.QuietUntil.Equal(want) || !want.After(last.At.Add(time.Second)) {
		b.t.Errorf("report %+v, answered with %d ms, want silence from %s on", last, reply.ReportAfterMS, want)
	}
}

package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

const (
	long     = time.Hour   // a wait that ends after every test
	patience = time.Minute // a timeout that is longer than a temporary stall of the machine
)

// waiting is a report that may be parked.
type waiting struct {
	t      testing.TB
	caller devices.Caller
	parked chan struct{} // closed when the report is parked
	answer chan answered
	leave  context.CancelFunc // closes the connection of the device
}

type answered struct {
	devices.Reply
	held bool
	err  error
}

// wait sends a report that may be parked for at most the given time.
func (b *bench) wait(d *dispatcher.Dispatcher, caller devices.Caller, body string, wait time.Duration) *waiting {
	b.t.Helper()
	report, err := devices.DecodeReport([]byte(body))
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, leave := context.WithCancel(b.ctx)
	w := &waiting{t: b.t, caller: caller, parked: make(chan struct{}), answer: make(chan answered, 1), leave: leave}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reply, held, err := d.Wait(ctx, caller, report, wait, func() { close(w.parked) })
		w.answer <- answered{reply, held, err}
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

// parks sends a report and expects that it is parked.
func (b *bench) parks(device string) *waiting {
	b.t.Helper()
	w := b.wait(b.Dispatcher, fleetCaller(device), `{"id":"`+device+`-waits"}`, long)
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

// wake notifies a replica that a slot of pool "a" is offered to the device.
func wake(d *dispatcher.Dispatcher, device string) {
	d.Waiters.Parks.Called([]parked.Call{{Device: device, Pool: "a"}})
}

// keepingOffers makes offers last for a minute, so that no offer lapses because the machine stalls.
func keepingOffers(c *dispatcher.Config) { c.Offer = minute }

// replica returns another dispatcher on the stores of a bench. Both dispatchers exchange messages about
// parked reports.
func (b *bench) replica() *dispatcher.Dispatcher {
	b.t.Helper()
	b.Dispatcher = b.parking()
	return b.parking()
}

func (b *bench) parking(changes ...func(*dispatcher.Config)) *dispatcher.Dispatcher {
	b.t.Helper()
	board := parked.New(b.redis, b.database)
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
		board.Listen(ctx, d.Waiters.Parks, func() { hears <- struct{}{} })
	}()
	b.t.Cleanup(func() {
		if err := d.Waiters.Stop(context.Background()); err != nil {
			b.t.Error(err)
		}
		stop()
		<-ended
	})
	select {
	case <-hears:
	case <-time.After(patience):
		b.t.Fatal("the replica hears nothing")
	}
	return d
}

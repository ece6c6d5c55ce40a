package mqtt_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// crowd returns a broker and a client for many devices: it reports as any device and receives all replies.
func crowd(t *testing.T) (s mosquitto, d *fakeDevice) {
	t.Helper()
	s = mosquitto{servers.Mosquitto(t)} // It allows 20 unacknowledged messages.
	return s, device(t, s, "+")
}

func (d *fakeDevice) reportAs(id devices.ID) {
	d.Publish(devices.ReportTopic(id), 1, false, fmt.Sprintf(`{"id":%q}`, id))
}

// answered collects n replies and returns their reasons by report id. Each device has one report.
func (d *fakeDevice) answered(t *testing.T, n int) map[string]devices.Reason {
	t.Helper()
	replies := make(map[string]devices.Reason)
	for range n {
		reply := d.reply(t)
		replies[reply.Re] = reply.Reason
	}
	return replies
}

// TestHandlersThatHangDeafenNobody checks that reports of other devices arrive while more handlers
// hang than the broker allows unacknowledged reports. Each report is answered with unavailable,
// and with the real reply when its handler returns.
func TestHandlersThatHangDeafenNobody(t *testing.T) {
	t.Parallel()
	s, d := crowd(t)
	release := make(chan struct{})
	counts := &counter{}
	connect(t, mqtt.Options{
		URL: s.URL(), Workers: 64, Patience: 100 * time.Millisecond, BusyAfter: time.Second,
		Handler: counts.of(func(_ context.Context, id devices.ID, _ string) devices.Reply {
			<-release
			return devices.Reply{Re: string(id), Reason: devices.ReasonNone}
		}),
	})
	const fleet = 50
	for n := range fleet {
		d.reportAs(devices.ID(fmt.Sprint("meter-", n)))
	}
	for id, reason := range d.answered(t, fleet) {
		if reason != devices.ReasonUnavailable || id == "" {
			t.Errorf("%q is told %s", id, reason)
		}
	}
	if got := counts.get("unavailable"); got != fleet {
		t.Errorf("%d were slow", got)
	}
	close(release)
	if got := d.reply(t); got.Reason != devices.ReasonNone || got.Re == "" {
		t.Errorf("afterwards: %+v", got)
	}
}

// TestHandlerThatHangsHoldsOnlyItsWorker checks that a hanging handler blocks only its worker. The
// reports in its queue are refused with unavailable, and all other reports are served.
func TestHandlerThatHangsHoldsOnlyItsWorker(t *testing.T) {
	t.Parallel()
	s, d := crowd(t)
	release, entered := make(chan struct{}), make(chan struct{})
	connect(t, mqtt.Options{
		URL: s.URL(), Workers: 8, Patience: 100 * time.Millisecond,
		Handler: handlerOf(func(_ context.Context, id devices.ID, _ string) devices.Reply {
			if id == "hangs" {
				close(entered)
				<-release
			}
			return devices.Reply{Re: string(id), Reason: devices.ReasonNone}
		}),
	})
	d.reportAs("hangs")
	<-entered
	if got := d.reply(t); got.Re != "hangs" || got.Reason != devices.ReasonUnavailable {
		t.Errorf("%+v", got)
	}
	const fleet = 60
	for n := range fleet {
		d.reportAs(devices.ID(fmt.Sprint("meter-", n)))
	}
	d.untilServed(t, fleet, fleet/2)
	close(release)
	got := d.reply(t)
	for got.Re != "hangs" { // This is a second reply to a report that was handled late.
		got = d.reply(t)
	}
	if got.Reason != devices.ReasonNone {
		t.Errorf("%+v", got)
	}
}

// untilServed waits until all devices have a reply and enough devices have the reply of the
// handler. A refused device reports again: on a busy machine a report may take longer than
// Patience. Then it is answered twice, and the reports behind it in the queue are refused.
func (d *fakeDevice) untilServed(t *testing.T, all, enough int) {
	t.Helper()
	answered, served := make(map[string]bool), make(map[string]bool)
	for deadline := time.Now().Add(patience); len(answered) < all || len(served) < enough; {
		got := d.reply(t)
		answered[got.Re] = true
		switch {
		case got.Reason == devices.ReasonNone:
			served[got.Re] = true
		case got.Reason != devices.ReasonUnavailable:
			t.Fatalf("%+v", got)
		case time.Now().After(deadline):
			t.Fatalf("%d of %d devices were answered and %d served, want %d", len(answered), all, len(served), enough)
		default:
			d.reportAs(devices.ID(got.Re))
		}
	}
}

// TestThousandReportsAtOnce checks that reports for which the queues have no room are refused and not kept.
func TestThousandReportsAtOnce(t *testing.T) {
	t.Parallel()
	s, d := crowd(t)
	release := make(chan struct{})
	var inside, most atomic.Int32
	const fleet, workers, queue = 1000, 4, 3 // in total fewer than the broker's limit of unacknowledged messages
	connect(t, mqtt.Options{
		URL: s.URL(), Workers: workers, Queue: queue, Patience: time.Hour,
		Handler: handlerOf(func(_ context.Context, id devices.ID, _ string) devices.Reply {
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer inside.Add(-1)
			<-release
			return devices.Reply{Re: string(id), Reason: devices.ReasonNone}
		}),
	})
	for n := range fleet {
		d.reportAs(devices.ID(fmt.Sprint("meter-", n)))
	}
	const kept = workers * (1 + queue)
	told := make(map[devices.Reason]int)
	for _, reason := range d.answered(t, fleet-kept) {
		told[reason]++
	}
	if told[devices.ReasonBusyServer] != fleet-kept {
		t.Errorf("told %v", told)
	}
	close(release)
	for _, reason := range d.answered(t, kept) {
		told[reason]++
	}
	if told[devices.ReasonNone] != kept || most.Load() > workers {
		t.Errorf("told %v; %d were handled at once", told, most.Load())
	}
}

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

// connectCrowd returns a broker and one client that acts for many devices: it can report as any device, and it
// receives the replies to all of them.
func connectCrowd(t *testing.T) (s mosquittoBroker, d *fakeDevice) {
	t.Helper()
	s = mosquittoBroker{servers.StartMosquitto(t)} // It allows 20 unacknowledged messages.
	return s, connectDevice(t, s, "+")
}

func (d *fakeDevice) reportAs(id devices.ID) {
	d.Publish(devices.ReportTopic(id), 1, false, fmt.Sprintf(`{"id":%q}`, id))
}

// collectReasons waits for n replies and returns their reasons by the ids of the reports. Each device sends one
// report.
func (d *fakeDevice) collectReasons(t *testing.T, n int) map[string]devices.Reason {
	t.Helper()
	replies := make(map[string]devices.Reason)
	for range n {
		reply := d.nextReply(t)
		replies[reply.Re] = reply.Reason
	}
	return replies
}

// TestHandlersThatHangDeafenNobody checks a replica in which more handlers of reports hang than the broker allows
// unacknowledged reports. Reports of other devices still arrive. Each report whose handler hangs is answered with
// unavailable, and with the real reply when its handler returns.
func TestHandlersThatHangDeafenNobody(t *testing.T) {
	t.Parallel()
	s, d := connectCrowd(t)
	release := make(chan struct{})
	counts := &reasonCounter{}
	startConnected(t, mqtt.Options{
		URL: s.URL(), Workers: 64, Patience: 100 * time.Millisecond, BusyAfter: time.Second,
		Handler: counts.newHandler(func(_ context.Context, id devices.ID, _ string) devices.Reply {
			<-release
			return devices.Reply{Re: string(id), Reason: devices.ReasonNone}
		}),
	})
	const fleet = 50
	for n := range fleet {
		d.reportAs(devices.ID(fmt.Sprint("meter-", n)))
	}
	for id, reason := range d.collectReasons(t, fleet) {
		if reason != devices.ReasonUnavailable || id == "" {
			t.Errorf("%q is told %s", id, reason)
		}
	}
	if got := counts.get("unavailable"); got != fleet {
		t.Errorf("%d were slow", got)
	}
	close(release)
	if got := d.nextReply(t); got.Reason != devices.ReasonNone || got.Re == "" {
		t.Errorf("afterwards: %+v", got)
	}
}

// TestHandlerThatHangsHoldsOnlyItsWorker checks a handler that hangs: it blocks only its own worker. Reports in the
// queue of this worker are refused with unavailable, and all other reports are served.
func TestHandlerThatHangsHoldsOnlyItsWorker(t *testing.T) {
	t.Parallel()
	s, d := connectCrowd(t)
	release, entered := make(chan struct{}), make(chan struct{})
	startConnected(t, mqtt.Options{
		URL: s.URL(), Workers: 8, Patience: 100 * time.Millisecond,
		Handler: newHandler(func(_ context.Context, id devices.ID, _ string) devices.Reply {
			if id == "hangs" {
				close(entered)
				<-release
			}
			return devices.Reply{Re: string(id), Reason: devices.ReasonNone}
		}),
	})
	d.reportAs("hangs")
	<-entered
	if got := d.nextReply(t); got.Re != "hangs" || got.Reason != devices.ReasonUnavailable {
		t.Errorf("%+v", got)
	}
	const fleet = 60
	for n := range fleet {
		d.reportAs(devices.ID(fmt.Sprint("meter-", n)))
	}
	d.waitUntilServed(t, fleet, fleet/2)
	close(release)
	got := d.nextReply(t)
	for got.Re != "hangs" { // This is a second reply to a report that was handled late.
		got = d.nextReply(t)
	}
	if got.Reason != devices.ReasonNone {
		t.Errorf("%+v", got)
	}
}

// waitUntilServed waits until wantAnswered devices have a reply and minServed devices have the reply of the
// handler. On a busy machine a report may take longer than Patience. Then it is answered twice, and the reports
// behind it in the queue are refused. A refused device reports again.
func (d *fakeDevice) waitUntilServed(t *testing.T, wantAnswered, minServed int) {
	t.Helper()
	answered, served := make(map[string]bool), make(map[string]bool)
	for deadline := time.Now().Add(patience); len(answered) < wantAnswered || len(served) < minServed; {
		got := d.nextReply(t)
		answered[got.Re] = true
		switch {
		case got.Reason == devices.ReasonNone:
			served[got.Re] = true
		case got.Reason != devices.ReasonUnavailable:
			t.Fatalf("%+v", got)
		case time.Now().After(deadline):
			t.Fatalf("%d of %d devices were answered and %d served, want %d", len(answered), wantAnswered, len(served), minServed)
		default:
			d.reportAs(devices.ID(got.Re))
		}
	}
}

// TestThousandReportsAtOnce checks a thousand reports that arrive at once: if the queues have no room for a report,
// it is refused and not kept.
func TestThousandReportsAtOnce(t *testing.T) {
	t.Parallel()
	s, d := connectCrowd(t)
	release := make(chan struct{})
	var inside, most atomic.Int32
	const fleet, workers, queue = 1000, 4, 3 // in total fewer than the broker's limit of unacknowledged messages
	startConnected(t, mqtt.Options{
		URL: s.URL(), Workers: workers, Queue: queue, Patience: time.Hour,
		Handler: newHandler(func(_ context.Context, id devices.ID, _ string) devices.Reply {
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
	for _, reason := range d.collectReasons(t, fleet-kept) {
		told[reason]++
	}
	if told[devices.ReasonBusyServer] != fleet-kept {
		t.Errorf("told %v", told)
	}
	close(release)
	for _, reason := range d.collectReasons(t, kept) {
		told[reason]++
	}
	if told[devices.ReasonNone] != kept || most.Load() > workers {
		t.Errorf("told %v; %d were handled at once", told, most.Load())
	}
}

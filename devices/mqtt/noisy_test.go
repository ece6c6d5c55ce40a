package mqtt_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/test/await"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestOneDeviceDoesNotFillTheQueue checks a device that sends more reports than fit into the queue of its worker. Other devices of this
// worker are not refused, and the device is told once that the server is busy.
func TestOneDeviceDoesNotFillTheQueue(t *testing.T) {
	t.Parallel()
	forBothBrokers(t, func(t *testing.T, s restartableBroker) {
		t.Helper()
		g, counts := newReplyGate(), &reasonCounter{}
		const queue, others = 16, 8
		clock := time.Unix(1000, 0)
		limiter := pace.New(pace.Options{Rate: 1000, Burst: 1000, Now: func() time.Time { return clock }})
		startConnected(t, mqtt.Options{URL: s.URL(), Workers: 1, Queue: queue, Pace: limiter, Handler: counts.newHandler(g.reply)})
		noisy := connectDevice(t, s, "noisy")
		const reports = 2 * queue // fewer than are unacknowledged at mosquitto, which has a window of 20
		for n := range reports {
			noisy.sendReport(t, fmt.Sprint(n))
		}
		<-g.entered
		if got := noisy.nextReply(t); got.Reason != devices.ReasonBusyServer || got.Re == "" {
			t.Errorf("%+v, want busy_server", got)
		}
		await.True(t, "all refused but 1 in progress and 4 waiting", func() bool { return counts.get("busy_server") >= reports-5 })
		var quiet []*fakeDevice
		for n := range others {
			quiet = append(quiet, connectDevice(t, s, devices.ID(fmt.Sprint("quiet-", n))))
			quiet[n].sendReport(t, "one")
		}
		close(g.open)
		for _, d := range quiet {
			if got := d.nextReply(t); got.Reason != devices.ReasonNone {
				t.Errorf("%s: %+v", d.id, got)
			}
		}
		await.True(t, "all reports counted", func() bool { return counts.get("none")+counts.get("busy_server") == reports+others })
		if more := len(noisy.replies); more > 5 {
			t.Errorf("%d more replies to the noisy device, want the 5 of the handler", more)
		}
	})
}

// TestReportsAboveTheRateAreNotHandled checks the limit of a device: the reports above the limit are acknowledged and counted, and one
// of these reports is answered.
func TestReportsAboveTheRateAreNotHandled(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	counts, clock := &reasonCounter{}, time.Unix(1000, 0)
	limiter := pace.New(pace.Options{Rate: 1, Burst: 3, Now: func() time.Time { return clock }})
	startConnected(t, mqtt.Options{URL: s.URL(), Pace: limiter, Handler: counts.newHandler(func(_ context.Context, _ devices.ID, report string) devices.Reply {
		return devices.Reply{Re: report, Reason: devices.ReasonNone}
	})})
	d := connectDevice(t, s, "a")
	told := map[devices.Reason]int{}
	for n := range 3 {
		d.sendReport(t, fmt.Sprint(n))
		told[d.nextReply(t).Reason]++
	}
	const above = 100 // more than the window of unacknowledged messages
	for n := range above {
		d.sendReport(t, fmt.Sprint("above-", n))
	}
	if got := d.nextReply(t); got.Reason != devices.ReasonBusyServer || got.Code != "busy_server" || got.Re != "above-0" || got.ReportAfterMS == 0 {
		t.Errorf("%+v, want busy_server", got)
	}
	await.True(t, "all counted", func() bool { return counts.get(pace.OverRate) == above })
	if told[devices.ReasonNone] != 3 || len(d.replies) != 0 {
		t.Errorf("within the rate: %v; %d more replies", told, len(d.replies))
	}
}

// TestExcessIsReceivedWithoutAcknowledgements checks devices that report far above their rate. While they do, the client must receive all
// reports with QoS 0, so that their reports do not fill the queue of the broker. Reports of other devices are answered throughout.
func TestExcessIsReceivedWithoutAcknowledgements(t *testing.T) {
	t.Parallel()
	s := mosquittoBroker{servers.StartMosquitto(t)}
	clock, log := time.Unix(1000, 0), newLineLog()
	limiter := pace.New(pace.Options{Rate: 1, Burst: 4, Now: func() time.Time { return clock }})
	startConnected(t, mqtt.Options{URL: s.URL(), Pace: limiter, Logger: slog.New(log), Handler: newHandler(echoID)})
	noisy, quiet := connectDevice(t, s, "noisy"), connectDevice(t, s, "quiet")
	changes := func() int { return len(log.linesWith("changed the QoS of the subscription")) }
	expectAnswer := func(when string) {
		t.Helper()
		quiet.sendReport(t, when)
		if got := quiet.nextReply(t); got.Re != when {
			t.Errorf("%s: %+v", when, got)
		}
	}
	await.True(t, "the change to QoS 0", func() bool {
		for range 2000 {
			noisy.Publish(devices.ReportTopic("noisy"), 0, false, "{}")
		}
		return changes() == 1
	})
	expectAnswer("after the change to QoS 0")
	await.True(t, "the change back to QoS 1", func() bool { return changes() == 2 })
	expectAnswer("after the change back")
}

package broker_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestNothingIsRetained(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	a := connectDevice(t, b, "a")
	if token := a.Publish(devices.ReportTopic("a"), 1, true, "old"); !token.WaitTimeout(patience) {
		t.Fatal("no answer")
	}
	a.subscribe(t, devices.ReplyTopic("a")) // The broker answers in order, so it has handled the report.
	o, inside := clientOptions(b, "dispatcher-1", internalUser, "internal")
	must.Succeed(t, inside.connect(t, o))
	inside.subscribe(t, devices.ReportTopic("a")) // A subscription that is not shared would receive a retained message.
	connectDevice(t, b, "a").publish(t, devices.ReportTopic("a"), "new", 1)
	if got := inside.nextMessage(t); got != "fleet/v1/a/report new" {
		t.Errorf("received %q", got)
	}
}

func TestOldProtocolIsRefused(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	o, c := clientOptions(b, "a", "a", passwordPrefix+"a")
	if err := c.connect(t, o.SetProtocolVersion(3)); err == nil {
		t.Error("connected with MQTT 3.1")
	}
}

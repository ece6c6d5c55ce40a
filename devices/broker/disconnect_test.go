package broker_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestDisconnectEndsAllSessionsOfADevice(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	inside, other := connectDispatcher(t, b), connectDevice(t, b, "b")
	whole := connectDevice(t, b, "a")
	o, part := clientOptions(b, "a/sub", "a", "secret-of-a")
	must.Succeed(t, part.connect(t, o))
	b.Disconnect("a")
	b.Disconnect("nobody")
	for _, c := range []*testClient{whole, part} {
		await.Receive(t, c.lost, "a session goes on")
	}
	if code := other.subscribe(t, devices.ReplyTopic("b")); code != 1 || !inside.IsConnectionOpen() {
		t.Errorf("another session ended: %#x", code)
	}
	connectDevice(t, b, "a")
}

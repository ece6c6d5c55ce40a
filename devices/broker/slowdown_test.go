package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
)

// TestFastPublisherIsSlowedDown checks a device that publishes faster than the broker's limit: the broker reads from it more slowly. The broker
// must lose no message of this or another device, and must be able to stop meanwhile.
func TestFastPublisherIsSlowedDown(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	dispatcher := connectDispatcher(t, b)
	noisy, quiet := connectDevice(t, b, "noisy"), connectDevice(t, b, "quiet")
	const messages, burst = 1000, 400
	began := time.Now()
	for n := range messages {
		noisy.Publish(devices.ReportTopic("noisy"), byte(n%2), false, fmt.Sprint(n))
	}
	quiet.Publish(devices.ReportTopic("quiet"), 1, false, "quiet")
	received, quietAfter := 0, 0
	for received < messages+1 {
		message := await.Receive(t, dispatcher.received, fmt.Sprintf("%d of %d messages arrived", received, messages+1))
		if received++; strings.HasPrefix(message, devices.ReportTopic("quiet")) {
			quietAfter = received
		}
	}
	t.Logf("%d messages in %s; the quiet device came as number %d", messages, time.Since(began), quietAfter)
	if took := time.Since(began); took < 2500*time.Millisecond {
		t.Errorf("%d messages took %s, want at least 2.5 s with a burst of %d and 200 a second", messages, took, burst)
	}
	if quietAfter == messages+1 {
		t.Error("the message of the quiet device came last")
	}
	for range 2 * messages {
		noisy.Publish(devices.ReportTopic("noisy"), 0, false, "until the broker stops")
	}
}

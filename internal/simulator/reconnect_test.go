package simulator

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// serveMQTTThrough does the same as serveMQTT, with a proxy in front of the broker that can break connections.
func serveMQTTThrough(t *testing.T, f *fakeDispatcher) (string, *servers.Proxy) {
	t.Helper()
	url, _ := serveMQTT(t, f)
	proxy := servers.NewProxy(t, strings.TrimPrefix(url, "mqtt://"))
	return "mqtt://" + proxy.Addr, proxy
}

// TestNothingOfALostConnectionGoesOverTheNext cuts the connections of devices again and again while they report
// without a pause. Each device must reconnect. The MQTT library must not send anything again by itself: only the
// device may do so.
func TestNothingOfALostConnectionGoesOverTheNext(t *testing.T) {
	t.Parallel()
	const devices = 20
	f, _ := newFake(t)
	f.reportAfterMS = 1
	url, proxy := serveMQTTThrough(t, f)
	fleet := newFleet(Config{
		MQTTURL: url, FleetToken: testFleetToken, Devices: devices, Via: ViaMQTT,
		Period: 2 * time.Millisecond, ResendAfter: 20 * time.Millisecond, FirstRetry: 2 * time.Millisecond,
	}, "127.0.0.1:1", nil, newLeases())
	runInBackground(t, func() { fleet.Run(t.Context()) })
	for range 5 {
		proxy.Cut()
		proxy.EndCut()
		f.mu.Lock()
		clear(f.reportedDevices)
		f.mu.Unlock()
		await.True(t, "the expected state of the fleet", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.reportedDevices) == devices
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.resentMessages > 0 {
		t.Errorf("%d reports were sent again by the library", f.resentMessages)
	}
}

// TestADeviceThatConnectsEndsAtOnce checks a device that is connecting to a broker that does not answer: hangUp
// closes the connection.
func TestADeviceThatConnectsEndsAtOnce(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	hangUp := newMQTTLink("mqtt://"+listener.Addr().String(), "d", "token", time.Second).open(t.Context(), make(chan linkMessage))
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the CONNECT packet
		t.Fatal(err)
	}
	hangUp()
	if _, err := conn.Read(make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection stays open")
	}
}

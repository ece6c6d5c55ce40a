package simulator

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

// doorman lets devices in as an embedded broker would: user name = client id =
// device id, password = token, only their own topics.
type doorman struct {
	mochi.HookBase
	fake *fake
}

func (*doorman) Provides(b byte) bool {
	return b == mochi.OnConnectAuthenticate || b == mochi.OnACLCheck
}

func (d *doorman) OnConnectAuthenticate(c *mochi.Client, p packets.Packet) bool {
	d.fake.mu.Lock()
	defer d.fake.mu.Unlock()
	return c.ID == "server" || string(p.Connect.Password) == d.fake.tokenOf(c.ID) && c.ID == string(p.Connect.Username)
}

func (*doorman) OnACLCheck(c *mochi.Client, topic string, write bool) bool {
	own := "fleet/v1/" + c.ID
	return c.ID == "server" || topic == own+"/report" && write || topic == own+"/reply" && !write
}

// serveMQTT puts a broker before a fake dispatcher and returns its URL and a
// client that may publish replies.
func serveMQTT(t *testing.T, f *fake) (string, paho.Client) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broker := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	for _, err := range []error{broker.AddHook(&doorman{fake: f}, nil), broker.AddListener(listeners.NewNet("tcp", l)), broker.Serve()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	url := "mqtt://" + l.Addr().String()
	client := paho.NewClient(paho.NewClientOptions().AddBroker(url).SetClientID("server").SetOrderMatters(false).SetWriteTimeout(2 * time.Second))
	var answering sync.WaitGroup // paho answers each report in a goroutine of its own
	wait(t, client.Connect())
	wait(t, client.Subscribe("fleet/v1/+/report", 1, func(c paho.Client, m paho.Message) {
		answering.Add(1)
		defer answering.Done()
		f.answerMQTT(c, m)
	}))
	t.Cleanup(func() {
		client.Disconnect(100)
		answering.Wait()
		_ = broker.Close()
	})
	return url, client
}

func wait(t *testing.T, token paho.Token) {
	t.Helper()
	if !token.WaitTimeout(10*time.Second) || token.Error() != nil {
		t.Fatalf("mqtt: %v", token.Error())
	}
}

func (f *fake) answerMQTT(c paho.Client, m paho.Message) {
	device := strings.TrimSuffix(strings.TrimPrefix(m.Topic(), "fleet/v1/"), "/report")
	f.mu.Lock()
	status, reply := f.report(device, m.Payload())
	f.mu.Unlock()
	if status != 200 {
		reply = map[string]any{"reason": "invalid", "code": reply["code"]}
	}
	var b bytes.Buffer
	writeTo(&b, reply)
	c.Publish("fleet/v1/"+device+"/reply", 1, false, b.Bytes())
}

func TestAMixedFleetWithAllFaults(t *testing.T) {
	t.Parallel()
	for _, via := range []Via{ViaMQTT, ViaMixed} {
		t.Run(string(via), func(t *testing.T) {
			t.Parallel()
			f, server := newFake(t)
			f.lease = 800 * time.Millisecond
			c := testConfig(server.URL)
			c.MQTTURL, _ = serveMQTT(t, f)
			c.Via = via
			c.Faults = Faults{Silent: 0.15, Slow: 0.1, Reboot: 0.1, Duplicate: 0.2, LostReplies: 0.1, Garbage: 0.2}
			s, _ := runAgainst(t, f, c)
			if err := s.Err(); err != nil {
				t.Fatalf("Err: %v", err)
			}
			if s.Compared != 60 || s.Fleet.GarbageRefused == 0 || s.Fleet.LostReplies == 0 || s.Fleet.Silent == 0 {
				t.Errorf("compared %d, %+v", s.Compared, s.Fleet)
			}
		})
	}
}

func TestAWakeBringsAReportAtOnce(t *testing.T) {
	t.Parallel()
	f, _ := newFake(t)
	url, client := serveMQTT(t, f)
	fleet, err := NewFleet(Options{
		MQTTURL: url, Token: testFleetToken, Devices: 1, Via: ViaMQTT, External: "127.0.0.1:1",
		Period: time.Hour, Resend: time.Hour, Retry: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	d := fleet.device(0)
	d.manners.period = 20 * time.Millisecond // only the wait for the connection is this short
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.run(t.Context(), 0)
	}()
	t.Cleanup(func() { <-ended })
	received := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.received
	}
	eventually(t, func() bool { return fleet.Stats().Replies >= 1 })
	before := received()
	f.mu.Lock()
	f.reportAfterMS = 3_600_000
	f.mu.Unlock()
	eventually(t, func() bool { return received() > before })
	before = received()
	wait(t, client.Publish(fmt.Sprintf("fleet/v1/%s/reply", d.id), 0, false, `{"reason":"wake","hold_ms":5000}`))
	eventually(t, func() bool { return received() > before })
	if got := fleet.Stats().Violations; got != 0 {
		t.Errorf("%d violations: %s", got, fleet.Stats().FirstViolation)
	}
}

// A device whose token is wrong never reports, and says so by failing.
func TestAStrangerIsNotLetInByTheBroker(t *testing.T) {
	t.Parallel()
	f, _ := newFake(t)
	url, _ := serveMQTT(t, f)
	fleet, err := NewFleet(Options{
		MQTTURL: url, Token: "wrong", Devices: 1, Via: ViaMQTT, External: "127.0.0.1:1",
		Period: 10 * time.Millisecond, Retry: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	d := fleet.device(0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.run(t.Context(), 0)
	}()
	t.Cleanup(func() { <-ended })
	eventually(t, func() bool { return fleet.Stats().Errors > 2 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.received != 0 {
		t.Errorf("%d reports got through", f.received)
	}
}

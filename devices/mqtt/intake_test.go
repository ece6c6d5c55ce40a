package mqtt

import (
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// fakeMessage is a paho.Message of a kind that a correct broker does not deliver over a shared subscription.
type fakeMessage struct {
	topic    string
	retained bool
	acks     int
}

func (d *fakeMessage) Duplicate() bool   { return false }
func (d *fakeMessage) Qos() byte         { return 1 }
func (d *fakeMessage) Retained() bool    { return d.retained }
func (d *fakeMessage) Topic() string     { return d.topic }
func (d *fakeMessage) MessageID() uint16 { return 1 }
func (d *fakeMessage) Payload() []byte   { return nil }
func (d *fakeMessage) Ack()              { d.acks++ }

// reasonRecorder records the reasons with which CountReport is called.
type reasonRecorder struct {
	devices.Handler
	reasons []string
}

func (c *reasonRecorder) CountReport(_, reason string, _ time.Duration) {
	c.reasons = append(c.reasons, reason)
}

// TestLargeBodiesAreNotKept checks a report that is larger than MaxBody. It is refused, so only the beginning of
// its body is kept in memory.
func TestLargeBodiesAreNotKept(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int{0: 0, devices.MaxBody: devices.MaxBody, devices.MaxBody + 1: devices.MaxBody + 1, 100 << 20: devices.MaxBody + 1} {
		if kept := truncateBody(make([]byte, size)); len(kept) != want || cap(kept) > 2*want {
			t.Errorf("%d bytes: %d kept, of %d", size, len(kept), cap(kept))
		}
	}
}

func TestReceiveDropsAndAcknowledges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		message fakeMessage
		want    string
	}{
		"retained":  {fakeMessage{topic: "fleet/v1/a/report", retained: true}, "retained"},
		"bad topic": {fakeMessage{topic: "fleet/v1/a/b/report"}, "bad_topic"},
		"bad id":    {fakeMessage{topic: "fleet/v1/é/report"}, "bad_topic"},
	} {
		counted := &reasonRecorder{}
		options, err := Options{URL: "mqtt://h", Handler: counted}.withDefaults()
		must.Succeed(t, err)
		in := newIntake(options, nil)
		in.receiveReport(&test.message)
		if test.message.acks != 1 || !slices.Equal(counted.reasons, []string{test.want}) {
			t.Errorf("%s: counted as %v, %d acks", name, counted.reasons, test.message.acks)
		}
		for _, queue := range in.queues {
			if len(queue) != 0 {
				t.Errorf("%s: queued", name)
			}
		}
	}
}

package mqtt

import (
	"context"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// How many messages may wait in the queue, and how many for the broker's PUBACK.
const unsentMax, unconfirmedMax = 2048, 1024

// confirmEvery is how often confirmations are looked at when nothing is published.
const confirmEvery = 500 * time.Millisecond

// message is on its way to a device.
type message struct {
	topic string
	qos   byte
	body  []byte
	sent  func() // called once it was handed over or dropped; may be nil
}

// unconfirmed is a publish that the broker has to acknowledge in time.
type unconfirmed struct {
	token paho.Token
	by    time.Time
}

// outbox publishes, so that no worker waits for the broker: one goroutine
// hands messages over in order, and looks after the broker's confirmations
// on the way. A broker that stops answering fills it up; then workers wait, their queues
// fill up, and devices are told to come later.
type outbox struct {
	connection  func() *connection // the newest; nil before the first
	lost        func()             // a message was
	messages    chan message
	unconfirmed []unconfirmed // oldest first; of the one goroutine
	goroutines  rescue.Crew

	mu      sync.RWMutex // guards messages against being closed in use
	stopped bool
	abandon chan struct{} // closed when nothing is worth waiting for any more
	giveUp  func()
}

func newOutbox(newest func() *connection, lost func(), panicked rescue.Told) *outbox {
	abandon := make(chan struct{})
	return &outbox{
		connection: newest, lost: lost, messages: make(chan message, unsentMax),
		goroutines: rescue.Crew{Told: panicked}, abandon: abandon, giveUp: sync.OnceFunc(func() { close(abandon) }),
	}
}

func (o *outbox) start() {
	o.goroutines.Go("publishing", func() {
		tick := time.NewTicker(confirmEvery)
		defer tick.Stop()
		for {
			select {
			case m, open := <-o.messages:
				if !open {
					o.confirm(0)
					return
				}
				o.goroutines.Told.Do("publishing", func() { o.publish(m) })
			case <-tick.C:
				o.confirm(unconfirmedMax)
			}
		}
	})
}

// send waits for room.
func (o *outbox) send(m message) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.stopped {
		o.lost()
		return
	}
	select {
	case o.messages <- m:
	case <-o.abandon:
		o.lost()
	}
}

// offer drops the message when there is no room.
func (o *outbox) offer(m message) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if !o.stopped {
		select {
		case o.messages <- m:
			return
		default:
		}
	}
	o.lost()
}

// publish hands a message to the connection, unless there is none: kept for the
// next one, the answer would not be true any more.
func (o *outbox) publish(m message) {
	if m.sent != nil {
		defer m.sent()
	}
	now := o.connection()
	if !now.open() {
		o.lost()
		return
	}
	o.confirm(unconfirmedMax - 1)
	o.unconfirmed = append(o.unconfirmed, unconfirmed{token: now.paho.Publish(m.topic, m.qos, false, m.body), by: time.Now().Add(tokenTimeout)})
}

// confirm forgets the oldest messages that the broker has, or has not in time. It waits
// for it while more than most would be left.
func (o *outbox) confirm(most int) {
	for len(o.unconfirmed) > 0 {
		oldest := o.unconfirmed[0]
		select {
		case <-oldest.token.Done():
		default:
			if len(o.unconfirmed) <= most && time.Now().Before(oldest.by) {
				return
			}
		}
		if waitToken(oldest.token, time.Until(oldest.by), o.abandon) != nil {
			o.lost()
		}
		o.unconfirmed = o.unconfirmed[1:]
	}
}

// stop waits until everything is out and confirmed, or ctx ends.
func (o *outbox) stop(ctx context.Context) error {
	if ctx.Err() != nil {
		o.giveUp() // before the lock: a worker may hold it, waiting for room
	}
	o.mu.Lock()
	o.stopped = true
	close(o.messages)
	o.mu.Unlock()
	err := o.goroutines.WaitWithin(ctx)
	o.giveUp()
	return err
}

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
// hands messages over in order, one looks after the broker's confirmations.
// A broker that stops answering fills it up; then workers wait, their queues
// fill up, and devices are told to come later.
type outbox struct {
	connection  func() *connection // the newest; nil before the first
	lost        func()             // a message was
	messages    chan message
	unconfirmed chan unconfirmed
	goroutines  rescue.Crew

	mu      sync.RWMutex // guards messages against being closed in use
	stopped bool
	abandon chan struct{} // closed when nothing is worth waiting for any more
	giveUp  func()
}

func newOutbox(newest func() *connection, lost func(), panicked rescue.Told) *outbox {
	abandon := make(chan struct{})
	return &outbox{
		connection: newest, lost: lost, messages: make(chan message, unsentMax), unconfirmed: make(chan unconfirmed, unconfirmedMax),
		goroutines: rescue.Crew{Told: panicked}, abandon: abandon, giveUp: sync.OnceFunc(func() { close(abandon) }),
	}
}

func (o *outbox) start() {
	o.goroutines.Go("publishing", func() {
		defer close(o.unconfirmed)
		for m := range o.messages {
			o.goroutines.Told.Do("publishing", func() { o.publish(m) })
		}
	})
	o.goroutines.Go("confirming", func() {
		for u := range o.unconfirmed {
			o.goroutines.Told.Do("confirming", func() { o.confirm(u) })
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
	o.unconfirmed <- unconfirmed{token: now.paho.Publish(m.topic, m.qos, false, m.body), by: time.Now().Add(tokenTimeout)}
}

func (o *outbox) confirm(u unconfirmed) {
	if waitToken(u.token, time.Until(u.by), o.abandon) != nil {
		o.lost()
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

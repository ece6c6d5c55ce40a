package mqtt

import (
	"context"
	"errors"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
)

// unconfirmedMax is how many publishes may wait for the broker's PUBACK.
const unconfirmedMax = 1024

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
	paho        paho.Client
	count       func(Event)
	messages    chan message
	unconfirmed chan unconfirmed
	goroutines  sync.WaitGroup

	mu      sync.RWMutex // guards messages against being closed in use
	stopped bool
	abandon chan struct{} // closed when nothing is worth waiting for any more
	giveUp  func()
}

func newOutbox(client paho.Client, count func(Event), size int) *outbox {
	abandon := make(chan struct{})
	return &outbox{
		paho: client, count: count, messages: make(chan message, size), unconfirmed: make(chan unconfirmed, unconfirmedMax),
		abandon: abandon, giveUp: sync.OnceFunc(func() { close(abandon) }),
	}
}

func (o *outbox) start() {
	o.goroutines.Go(func() {
		defer close(o.unconfirmed)
		for m := range o.messages {
			o.publish(m)
		}
	})
	o.goroutines.Go(func() {
		for u := range o.unconfirmed {
			if waitToken(u.token, time.Until(u.by), o.abandon) != nil {
				o.count(EventReplyLost)
			}
		}
	})
}

// send waits for room.
func (o *outbox) send(m message) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.stopped {
		o.count(EventReplyLost)
		return
	}
	select {
	case o.messages <- m:
	case <-o.abandon:
		o.count(EventReplyLost)
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
	o.count(EventReplyLost)
}

// publish hands a message to paho, unless the connection is down: paho would
// keep it, and deliver an answer that is not true any more.
func (o *outbox) publish(m message) {
	if m.sent != nil {
		defer m.sent()
	}
	if !o.paho.IsConnectionOpen() {
		o.count(EventReplyLost)
		return
	}
	o.unconfirmed <- unconfirmed{token: o.paho.Publish(m.topic, m.qos, false, m.body), by: time.Now().Add(tokenTimeout)}
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
	err := waitGroup(ctx, &o.goroutines)
	o.giveUp()
	return err
}

// waitToken waits for the broker's answer, for at most timeout, or until abandon.
func waitToken(token paho.Token, timeout time.Duration, abandon <-chan struct{}) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-token.Done():
		return token.Error()
	case <-timer.C:
		return errors.New("no answer from the broker")
	case <-abandon:
		return errors.New("stopped")
	}
}

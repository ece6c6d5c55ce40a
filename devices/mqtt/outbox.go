package mqtt

import (
	"context"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// The maximum numbers of messages that wait in the queue, and for the broker's PUBACK.
const unsentMax, unconfirmedMax = 2048, 1024

// confirmEvery is the interval at which confirmations are checked while nothing is published.
const confirmEvery = 500 * time.Millisecond

type message struct {
	topic        string
	qos          byte
	body         []byte
	onSentOrLost func() // called after the message was handed to the connection, or lost because no connection is open; may be nil
}

type unconfirmedPublish struct {
	token    paho.Token
	deadline time.Time // the latest time for the acknowledgement; after it, the message counts as lost
}

// outbox publishes messages, so that no worker waits for the broker. One goroutine hands the messages to the connection in order. If the
// broker stops answering, the outbox and then the queues of the workers become full, and new reports are refused with busy_server.
type outbox struct {
	newestConnection func() *connection // returns the newest connection; nil before the first connection
	onLost           func()             // called for each message that was not sent, or that the broker did not acknowledge in time
	messages         chan message
	unconfirmed      []unconfirmedPublish // oldest first; used only by the publishing goroutine
	goroutines       rescue.ReportingGroup

	mu      sync.RWMutex // guards stopped; senders to messages hold it, so that the channel is not closed in use
	stopped bool
	abandon chan struct{} // closed when all waiting must end
	giveUp  func()        // closes abandon
}

func newOutbox(newestConnection func() *connection, onLost func(), panicked rescue.PanicHandler) *outbox {
	abandon := make(chan struct{})
	return &outbox{
		newestConnection: newestConnection, onLost: onLost, messages: make(chan message, unsentMax),
		goroutines: rescue.ReportingGroup{OnPanic: panicked}, abandon: abandon, giveUp: sync.OnceFunc(func() { close(abandon) }),
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
					o.removeConfirmedOrLostMessages(0)
					return
				}
				o.goroutines.OnPanic.Run("publishing", func() { o.publish(m) })
			case <-tick.C:
				o.removeConfirmedOrLostMessages(unconfirmedMax)
			}
		}
	})
}

// enqueueWhenRoom queues a message, and waits until the queue has room. If the outbox stops first, the message is lost.
func (o *outbox) enqueueWhenRoom(msg message) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.stopped {
		o.onLost()
		return
	}
	select {
	case o.messages <- msg:
	case <-o.abandon:
		o.onLost()
	}
}

// enqueueOrDrop queues a message. If there is no room, or if the outbox is stopped, the message is lost.
func (o *outbox) enqueueOrDrop(msg message) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if !o.stopped {
		select {
		case o.messages <- msg:
			return
		default:
		}
	}
	o.onLost()
}

// publish hands a message to the open connection. If no connection is open, the message is lost, because a reply would be outdated on the
// next connection.
func (o *outbox) publish(msg message) {
	if msg.onSentOrLost != nil {
		defer msg.onSentOrLost()
	}
	conn := o.newestConnection()
	if !conn.isOpen() {
		o.onLost()
		return
	}
	o.removeConfirmedOrLostMessages(unconfirmedMax - 1)
	o.unconfirmed = append(o.unconfirmed, unconfirmedPublish{token: conn.paho.Publish(msg.topic, msg.qos, false, msg.body), deadline: time.Now().Add(brokerAnswerTimeout)})
}

// removeConfirmedOrLostMessages removes the oldest unconfirmed messages that the broker has acknowledged or that are lost. While more than
// maxUnconfirmed messages remain, it waits for the oldest message.
func (o *outbox) removeConfirmedOrLostMessages(maxUnconfirmed int) {
	for len(o.unconfirmed) > 0 {
		oldest := o.unconfirmed[0]
		select {
		case <-oldest.token.Done():
		default:
			if len(o.unconfirmed) <= maxUnconfirmed && time.Now().Before(oldest.deadline) {
				return
			}
		}
		if waitForOperation(oldest.token, time.Until(oldest.deadline), o.abandon) != nil {
			o.onLost()
		}
		o.unconfirmed = o.unconfirmed[1:]
	}
}

// stop refuses new messages, and waits until all queued messages are published and confirmed, or until ctx ends.
func (o *outbox) stop(ctx context.Context) error {
	if ctx.Err() != nil {
		o.giveUp() // before the lock, because a worker that waits for room holds the lock
	}
	o.mu.Lock()
	o.stopped = true
	close(o.messages)
	o.mu.Unlock()
	err := o.goroutines.WaitWithin(ctx)
	o.giveUp()
	return err
}

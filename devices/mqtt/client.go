package mqtt

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

const (
	transport = "mqtt" // in metrics

	qosReport, qosReply, qosWake = 1, 1, 0

	// Pauses between attempts to connect are random, up to the first, doubled
	// each time up to the last: replicas do not come back in lockstep, and a
	// broker that is back is found within 5 s.
	reconnectAfter = time.Second
	reconnectMax   = 2 * time.Second

	// Reports that the library had read from the broker before it agreed to send no
	// more have reached us by then.
	lastReports = 50 * time.Millisecond
)

// Client is one dispatcher's connection to the broker. It connects and
// reconnects by itself; use each once: New, Start, Stop.
type Client struct {
	options Options
	filter  string
	intake  *intake
	outbox  *outbox

	current    atomic.Pointer[connection] // the newest; nil before the first
	connecting rescue.Crew
	hangUp     context.CancelFunc // no new connection, and no waiting for one

	stopping chan struct{}
	stopOnce sync.Once
	stopErr  error
}

// New returns a client that is not connected yet. Errors are wrong options.
func New(options Options) (*Client, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		options: options, filter: devices.SharedReportFilter(options.Group),
		hangUp: func() {}, stopping: make(chan struct{}),
	}
	c.connecting.Told = options.Panicked
	lost := func() {
		options.Logger.Debug("a message to a device was lost: not connected, or the broker is too slow")
	}
	c.outbox = newOutbox(c.current.Load, lost, options.Panicked)
	c.intake = newIntake(options, c.outbox)
	return c, nil
}

// Start connects in the background, for as long as it takes, and handles what
// comes until Stop. The handler's contexts carry the values of ctx, not its end.
func (c *Client) Start(ctx context.Context) error {
	select {
	case <-c.stopping:
		return errors.New("mqtt: stopped")
	default:
	}
	ctx = context.WithoutCancel(ctx)
	c.outbox.start()
	c.intake.start(ctx)
	ctx, c.hangUp = context.WithCancel(ctx)
	c.connecting.Go("staying connected", func() { c.stayConnected(ctx) })
	return nil
}

// Connected reports whether reports of devices reach this client.
func (c *Client) Connected() bool {
	now := c.current.Load()
	return now.open() && now.subscribed.Load()
}

// Wake asks a device to report now: a slot is kept for it for hold; with 0
// there is another reason to report. It is a hint at QoS 0: it never blocks, and may be lost.
func (c *Client) Wake(device devices.ID, hold time.Duration) {
	c.outbox.offer(message{topic: devices.ReplyTopic(device), qos: qosWake, body: devices.EncodeWake(hold)})
}

// stayConnected connects, and connects again, until ctx ends. Its client id
// stays the same, so that a new connection ends one that hangs at the broker;
// it is another after a connection that did not last: somebody else may have
// taken it.
func (c *Client) stayConnected(ctx context.Context) {
	id, pause, told := newID(), reconnectAfter, map[string]bool{}
	for {
		began := time.Now()
		subscribed := false
		err := c.options.Panicked.Tell("staying connected", rescue.Call(func() (err error) {
			subscribed, err = c.connection(ctx, id)
			return err
		}))
		if ctx.Err() != nil {
			return
		}
		switch {
		case subscribed:
			c.options.Logger.WarnContext(ctx, "lost the MQTT broker", "err", err)
			clear(told)
		case !told[reasonOf(err)]: // once, however long it lasts
			c.options.Logger.ErrorContext(ctx, "no connection to the MQTT broker; trying on", "err", err)
			told[reasonOf(err)] = true
		}
		if time.Since(began) > c.options.KeepAlive { // one that ended sooner did not work
			pause = reconnectAfter
		} else if subscribed {
			id = newID()
		}
		if !wait(ctx, time.Duration(rand.Int64N(int64(pause)))) { //nolint:gosec // jitter
			return
		}
		pause = min(2*pause, reconnectMax)
	}
}

// reasonOf tells one trouble from another: without the ports and addresses
// that differ each time.
func reasonOf(err error) string {
	if lookup, ok := errors.AsType[*net.DNSError](err); ok && lookup.IsTimeout {
		return "lookup of " + lookup.Name
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err.Error()
	}
	return err.Error()
}

// Stop takes no more reports, finishes those it has, with their replies, and
// disconnects. When ctx ends first, the handlers' contexts are cancelled, what
// is left is dropped (devices send it again), and the error of ctx is returned.
func (c *Client) Stop(ctx context.Context) error {
	c.stopOnce.Do(func() { c.stopErr = c.stop(ctx) })
	return c.stopErr
}

func (c *Client) stop(ctx context.Context) error {
	close(c.stopping)
	c.hangUp()
	c.connecting.Wait()
	now := c.current.Load()
	if now.open() && now.unsubscribe(ctx, c.filter) == nil {
		wait(ctx, lastReports)
	}
	err := errors.Join(c.intake.stop(ctx), c.outbox.stop(ctx))
	if now != nil {
		now.paho.Disconnect(disconnectWait)
	}
	if err != nil {
		c.options.Logger.WarnContext(ctx, "stopped before every report was answered", "err", err)
	}
	return err
}

// wait is false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

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
	transport = "mqtt" // label in metrics

	// qosSubscription is the QoS of the subscription to reports. qosExcess replaces it during an excess (watchExcess). A report that was
	// published with QoS 2 arrives with QoS 1.
	qosSubscription, qosReply, qosWake, qosExcess = 1, 1, 0, 0

	// The pause before the next attempt to connect is random, up to a bound that doubles from reconnectAfter to reconnectMax. So replicas
	// do not reconnect in lockstep, and they reach a restarted broker within 5 s.
	reconnectAfter = time.Second
	reconnectMax   = 2 * time.Second

	// lastReportsWait is the time for which Stop waits until paho has delivered the reports that paho has already read.
	lastReportsWait = 50 * time.Millisecond
)

// Client keeps the connection of one replica to the broker. It can be used once: New, Start, Stop.
type Client struct {
	options Options
	filter  string
	intake  *intake
	outbox  *outbox

	current        atomic.Pointer[connection] // the newest connection; nil before the first connection
	lastError      atomic.Pointer[error]      // why the last connection ended, or was not opened; nil if none has ended
	connecting     rescue.ReportingGroup
	stopConnecting context.CancelFunc // ends stayConnected: no new connection is opened, and nothing waits for one

	stopping chan struct{}
	stopOnce sync.Once
	stopErr  error
}

// New returns a client that is not connected yet.
func New(options Options) (*Client, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		options: options, filter: devices.SharedReportFilter(options.Group),
		stopConnecting: func() {}, stopping: make(chan struct{}),
	}
	c.connecting.OnPanic = options.Panicked
	onLost := func() {
		options.Logger.Debug("a message to a device was lost: not connected, or the broker is too slow")
	}
	c.outbox = newOutbox(c.current.Load, onLost, options.Panicked)
	c.intake = newIntake(options, c.outbox)
	return c, nil
}

// Start connects in the background, and handles reports until Stop is called. The contexts of the handler have the values of ctx but do not
// end with ctx. After Stop, Start returns an error.
func (c *Client) Start(ctx context.Context) error {
	select {
	case <-c.stopping:
		return errors.New("mqtt: stopped")
	default:
	}
	ctx = context.WithoutCancel(ctx)
	c.outbox.start()
	c.intake.start(ctx)
	ctx, c.stopConnecting = context.WithCancel(ctx)
	c.connecting.Go("staying connected", func() { c.stayConnected(ctx) })
	return nil
}

// Connected reports whether the client is connected and subscribed.
func (c *Client) Connected() bool {
	conn := c.current.Load()
	return conn.isOpen() && conn.subscribed.Load()
}

// Check returns nil if the client is Connected. Otherwise it returns why the last connection ended, or was not opened.
func (c *Client) Check() error {
	if c.Connected() {
		return nil
	}
	if last := c.lastError.Load(); last != nil {
		return *last
	}
	return errors.New("not connected yet")
}

// Wake asks a device to report now (hold: see devices.EncodeWake). It never blocks, and its message may be lost.
func (c *Client) Wake(device devices.ID, hold time.Duration) {
	c.outbox.enqueueOrDrop(message{topic: devices.ReplyTopic(device), qos: qosWake, body: devices.EncodeWake(hold)})
}

// stayConnected connects and reconnects until ctx ends. It keeps its client id, so that a new connection ends an old connection that still hangs
// at the broker. But if a subscribed connection lasted for at most one keepalive, stayConnected takes a new client id, because another client
// with the same id may have ended the connection.
func (c *Client) stayConnected(ctx context.Context) {
	id, pause, loggedReasons := newClientID(), reconnectAfter, map[string]bool{}
	for {
		began := time.Now()
		subscribed := false
		err := c.options.Panicked.Report("staying connected", rescue.Call(func() (err error) {
			subscribed, err = c.runConnection(ctx, id)
			return err
		}))
		if ctx.Err() != nil {
			return
		}
		c.lastError.Store(&err)
		switch {
		case subscribed:
			c.options.Logger.WarnContext(ctx, "lost the connection to the MQTT broker", "err", err)
			clear(loggedReasons)
		case !loggedReasons[errorTextWithoutAddress(err)]: // each reason is logged once until the next successful subscription
			c.options.Logger.ErrorContext(ctx, "no connection to the MQTT broker; retrying", "err", err)
			loggedReasons[errorTextWithoutAddress(err)] = true
		}
		if time.Since(began) > c.options.KeepAlive { // a connection that ended sooner counts as a failed attempt
			pause = reconnectAfter
		} else if subscribed {
			id = newClientID()
		}
		if !waitFor(ctx, drawPause(pause)) {
			return
		}
		pause = min(2*pause, reconnectMax)
	}
}

// drawPause returns a random duration below most.
func drawPause(most time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(most))) }

// errorTextWithoutAddress returns the text of err without ports and addresses, so that the same fault always has the same text.
func errorTextWithoutAddress(err error) string {
	if lookup, ok := errors.AsType[*net.DNSError](err); ok && lookup.IsTimeout {
		return "lookup of " + lookup.Name + " timed out"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err.Error()
	}
	return err.Error()
}

// Stop unsubscribes, handles the reports that it has received, sends their replies and disconnects. If ctx ends first, it drops the
// remaining reports (devices send them again) and returns the error of ctx. Further calls return the same result.
func (c *Client) Stop(ctx context.Context) error {
	c.stopOnce.Do(func() { c.stopErr = c.stop(ctx) })
	return c.stopErr
}

func (c *Client) stop(ctx context.Context) error {
	close(c.stopping)
	c.stopConnecting()
	c.connecting.Wait()
	conn := c.current.Load()
	if conn.isOpen() && conn.unsubscribe(ctx, c.filter) == nil {
		waitFor(ctx, lastReportsWait)
	}
	err := errors.Join(c.intake.stop(ctx), c.outbox.stop(ctx))
	if conn != nil {
		conn.paho.Disconnect(disconnectWaitMS)
	}
	if err != nil {
		c.options.Logger.WarnContext(ctx, "stopped before every report was answered", "err", err)
	}
	return err
}

// waitFor waits for duration. completed is false if ctx ends first.
func waitFor(ctx context.Context, duration time.Duration) (completed bool) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

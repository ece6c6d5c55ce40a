package mqtt

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
)

const (
	qosReport, qosReply, qosWake = 1, 1, 0

	keepAlive      = 20 * time.Second
	connectTimeout = 5 * time.Second
	reconnectAfter = time.Second     // the first time; doubles
	reconnectMax   = 3 * time.Second // so that a broker is found again within 5 s
	subscribeRetry = 2 * time.Second
	tokenTimeout   = 5 * time.Second // the broker's answer to a publish or (un)subscribe
	disconnectWait = 250             // milliseconds
)

// Client is one dispatcher's connection to the broker. It connects and
// reconnects by itself; use each once: New, Start, Stop.
type Client struct {
	options Options
	filter  string
	paho    paho.Client
	intake  *intake
	outbox  *outbox

	subscribed atomic.Bool
	stopping   chan struct{}
	stopOnce   sync.Once
	stopErr    error
}

// New returns a client that is not connected yet. Errors are wrong options.
func New(options Options) (*Client, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{options: options, filter: devices.SharedReportFilter(options.Group), stopping: make(chan struct{})}
	c.paho = paho.NewClient(c.pahoOptions())
	c.outbox = newOutbox(c.paho, options.Count, options.Workers*options.Queue)
	c.intake = newIntake(options, c.outbox)
	return c, nil
}

// pahoOptions spells out what paho's defaults would get wrong: messages are
// acknowledged by us, the session is clean, and a broker is found again soon.
func (c *Client) pahoOptions() *paho.ClientOptions {
	o := paho.NewClientOptions().
		AddBroker(c.options.URL).
		SetClientID(c.options.ClientIDPrefix + strings.ToLower(rand.Text()[:12])).
		SetCleanSession(true).
		SetOrderMatters(true).
		SetAutoAckDisabled(true).
		SetAutoReconnect(true).
		SetConnectRetry(true).
		SetConnectRetryInterval(reconnectAfter).
		SetMaxReconnectInterval(reconnectMax).
		SetConnectTimeout(connectTimeout).
		SetKeepAlive(keepAlive).
		SetPingTimeout(connectTimeout).
		SetWriteTimeout(tokenTimeout).
		SetDefaultPublishHandler(c.receive).
		SetOnConnectHandler(func(paho.Client) { c.subscribe() }).
		SetReconnectingHandler(func(paho.Client, *paho.ClientOptions) { c.subscribed.Store(false) }).
		SetConnectionLostHandler(func(_ paho.Client, err error) {
			c.options.Logger.Warn("lost the MQTT broker", "error", err)
		})
	if c.options.User != "" {
		o.SetUsername(c.options.User).SetPassword(c.options.Password)
	}
	if c.options.TLS != nil {
		o.SetTLSConfig(c.options.TLS)
	}
	return o
}

// receive is where paho delivers; it never blocks.
func (c *Client) receive(_ paho.Client, message paho.Message) { c.intake.receive(message) }

// Start connects in the background, for as long as it takes, and handles what
// comes until Stop. The handler's contexts carry the values of ctx, not its end.
func (c *Client) Start(ctx context.Context) error {
	select {
	case <-c.stopping:
		return errors.New("mqtt: stopped")
	default:
	}
	c.outbox.start()
	c.intake.start(context.WithoutCancel(ctx))
	c.paho.Connect() // its token would only end with success or Stop
	return nil
}

// Connected reports whether reports of devices reach this client.
func (c *Client) Connected() bool { return c.subscribed.Load() && c.paho.IsConnectionOpen() }

// Wake asks a device to report now: a slot is kept for it for hold; with 0
// there is other news. It is a hint at QoS 0: it never blocks, and may be lost.
func (c *Client) Wake(device devices.ID, hold time.Duration) {
	c.outbox.offer(message{topic: devices.ReplyTopic(device), qos: qosWake, body: devices.EncodeWake(hold)})
}

// subscribe runs at each connection until the broker agreed, or it is over.
func (c *Client) subscribe() {
	retry := time.NewTicker(subscribeRetry)
	defer retry.Stop()
	for c.paho.IsConnectionOpen() {
		err := c.trySubscribe()
		if err == nil {
			c.subscribed.Store(true)
			c.options.Count(EventConnected)
			c.options.Logger.Info("subscribed to the reports of devices", "filter", c.filter)
			return
		}
		c.options.Count(EventSubscribeFail)
		c.options.Logger.Error("cannot subscribe to the reports of devices", "filter", c.filter, "error", err)
		select {
		case <-retry.C:
		case <-c.stopping:
			return
		}
	}
}

func (c *Client) trySubscribe() error {
	token := c.paho.Subscribe(c.filter, qosReport, nil)
	if err := waitToken(token, tokenTimeout, c.stopping); err != nil {
		return err
	}
	if granted, ok := token.(*paho.SubscribeToken); ok {
		for _, qos := range granted.Result() {
			if qos != qosReport {
				return errors.New("the broker refused it, or offers no QoS 1")
			}
		}
	}
	return nil
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
	c.unsubscribe(ctx)
	c.subscribed.Store(false)
	err := c.intake.stop(ctx)
	err = errors.Join(err, c.outbox.stop(ctx))
	c.paho.Disconnect(disconnectWait)
	if err != nil {
		c.options.Logger.WarnContext(ctx, "stopped before every report was answered", "error", err)
	}
	return err
}

func (c *Client) unsubscribe(ctx context.Context) {
	if !c.paho.IsConnectionOpen() {
		return
	}
	// An answer that does not come only means that more reports may arrive.
	_ = waitToken(c.paho.Unsubscribe(c.filter), tokenTimeout, ctx.Done())
}

package mqtt

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
)

const (
	connectTimeout = 5 * time.Second
	writeTimeout   = 5 * time.Second
	tokenTimeout   = 5 * time.Second // the broker's answer to a publish or (un)subscribe
	disconnectWait = 250             // milliseconds
)

// connection is one connection to the broker, with a paho client of its own:
// nothing of the last one lives on in it. Connecting again, paho would deliver
// replies that are not true any more, and keep the message ids of those that
// are never confirmed.
type connection struct {
	paho       paho.Client
	opened     chan net.Conn // the network connection, before the broker's answer
	lost       chan error
	subscribed atomic.Bool
}

// open is false for none, and for one that has ended.
func (c *connection) open() bool { return c != nil && c.paho.IsConnectionOpen() }

// connection lasts from the attempt to connect until it is lost, or ctx ends:
// then it stays open. It tells whether it was of use, and why it ended.
func (c *Client) connection(ctx context.Context, id string) (subscribed bool, err error) {
	now := &connection{opened: make(chan net.Conn, 1), lost: make(chan error, 1)}
	now.paho = paho.NewClient(c.pahoOptions(ctx, id, now))
	if err := now.connect(ctx); err != nil {
		return false, err
	}
	c.current.Store(now)
	if err := now.subscribe(ctx, c.filter); err != nil {
		now.paho.Disconnect(disconnectWait)
		return false, err
	}
	now.subscribed.Store(true)
	c.options.Connected()
	c.options.Logger.InfoContext(ctx, "subscribed to the reports of devices", "filter", c.filter)
	select {
	case err = <-now.lost:
	case <-ctx.Done():
	}
	return true, err
}

// connect waits for the broker's answer, for at most connectTimeout, or until
// ctx ends.
func (c *connection) connect(ctx context.Context) error {
	token := c.paho.Connect()
	select {
	case <-token.Done():
	case <-ctx.Done():
		select {
		case conn := <-c.opened:
			conn.Close()
		case <-token.Done():
		}
		<-token.Done()
	}
	return token.Error()
}

func newID() string { return "dispatcher-" + strings.ToLower(rand.Text()[:12]) }

// PahoOptions spells out what paho's defaults would get wrong, for other clients
// of the same broker, too: the session is clean, the protocol is 3.1.1 without a
// second try at 3.1, and connecting again is our own affair.
func PahoOptions(id, user, password string, keepAlive time.Duration) *paho.ClientOptions {
	return paho.NewClientOptions().
		SetClientID(id).
		SetUsername(user).
		SetPassword(password).
		SetProtocolVersion(4).
		SetCleanSession(true).
		SetAutoReconnect(false).
		SetConnectRetry(false).
		SetConnectTimeout(connectTimeout).
		SetKeepAlive(keepAlive).
		SetPingTimeout(keepAlive * 2 / 5). // paho looks each quarter of a keepalive: at the second look
		SetWriteTimeout(writeTimeout)
}

// pahoOptions lets us acknowledge messages, in their order.
func (c *Client) pahoOptions(ctx context.Context, id string, now *connection) *paho.ClientOptions {
	return PahoOptions(id, c.options.User, c.options.Password, c.options.KeepAlive).
		AddBroker(c.options.URL).
		SetOrderMatters(true).
		SetAutoAckDisabled(true).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
			c.options.Panicked.Do("receiving", func() { c.intake.receive(m) }) // in a goroutine of paho's
		}).
		SetConnectionLostHandler(func(_ paho.Client, err error) { now.lost <- err }).
		SetCustomOpenConnectionFn(func(broker *url.URL, _ paho.ClientOptions) (net.Conn, error) {
			raw, err := dial(ctx, broker, c.options.TLS)
			if err != nil {
				return nil, err
			}
			conn := newBuffered(raw)
			now.opened <- conn
			return conn, nil
		})
}

// Dialer returns what opens a network connection to the broker of a URL as
// Options has it, for other clients of the same broker. Every write on it ends.
func Dialer(broker string, settings *tls.Config) (func(context.Context) (net.Conn, error), error) {
	u, err := parseURL(broker)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, u, settings) }, nil
}

// dial opens the network connection.
func dial(ctx context.Context, broker *url.URL, settings *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	open := new(net.Dialer).DialContext
	if broker.Scheme == "mqtts" {
		open = (&tls.Dialer{Config: settings}).DialContext
	}
	conn, err := open(ctx, "tcp", broker.Host)
	if err != nil {
		return nil, err
	}
	return bounded{conn, writeTimeout}, nil
}

// bounded is a connection on which every write ends. paho bounds only its
// publishes: an acknowledgement, and the ping that would find out, wait for
// ever when the broker is there and reads nothing.
type bounded struct {
	net.Conn

	within time.Duration // of each write
}

// Write sends within the time for it.
func (b bounded) Write(p []byte) (int, error) {
	if err := b.SetWriteDeadline(time.Now().Add(b.within)); err != nil {
		return 0, err
	}
	return b.Conn.Write(p)
}

func (c *connection) subscribe(ctx context.Context, filter string) error {
	token := c.paho.Subscribe(filter, qosReport, nil)
	if err := waitToken(token, tokenTimeout, ctx.Done()); err != nil {
		return err
	}
	if granted, ok := token.(*paho.SubscribeToken); ok {
		for _, qos := range granted.Result() {
			if qos != qosReport {
				return errors.New("the broker refused the subscription " + filter + ", or offers no QoS 1 for it")
			}
		}
	}
	return nil
}

// unsubscribe is nil once the broker agreed to send no more reports.
func (c *connection) unsubscribe(ctx context.Context, filter string) error {
	c.subscribed.Store(false)
	return waitToken(c.paho.Unsubscribe(filter), tokenTimeout, ctx.Done())
}

// waitToken waits for the broker's answer, for at most timeout, or until abandon.
func waitToken(token paho.Token, timeout time.Duration, abandon <-chan struct{}) error {
	select {
	case <-token.Done():
		return token.Error()
	default:
	}
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

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
	connectTimeout      = 5 * time.Second
	writeTimeout        = 5 * time.Second
	brokerAnswerTimeout = 5 * time.Second // for a paho.Token, which is done with the broker's answer to a publish, subscribe or unsubscribe
	disconnectWaitMS    = 250             // milliseconds
)

// connection is one connection to the broker. Each connection has its own paho client, which
// starts without state. A reused paho client would deliver outdated replies after it
// reconnects, and would never free the message ids of unacknowledged ones.
type connection struct {
	paho       paho.Client
	opened     chan net.Conn // receives the network connection as soon as it is open, before the CONNACK
	lost       chan error    // receives the reason when the connection is lost
	subscribed atomic.Bool   // The broker has accepted the subscription.
}

// isOpen reports whether the connection is open. It returns false if c is nil.
func (c *connection) isOpen() bool { return c != nil && c.paho.IsConnectionOpen() }

// runConnection opens a connection, subscribes, and returns when the connection is lost or ctx
// ends. If ctx ends after the subscription, the connection stays open and err is nil. subscribed
// reports whether the subscription succeeded, and err is the reason why the connection ended.
func (c *Client) runConnection(ctx context.Context, id string) (subscribed bool, err error) {
	conn := &connection{opened: make(chan net.Conn, 1), lost: make(chan error, 1)}
	conn.paho = paho.NewClient(c.pahoOptions(ctx, id, conn))
	if err := conn.connect(ctx); err != nil {
		return false, err
	}
	c.current.Store(conn)
	if err := conn.subscribe(ctx, c.filter); err != nil {
		conn.paho.Disconnect(disconnectWaitMS)
		return false, err
	}
	conn.subscribed.Store(true)
	c.options.OnConnected()
	c.options.Logger.InfoContext(ctx, "subscribed to the reports of devices", "filter", c.filter)
	select {
	case err = <-conn.lost:
	case <-ctx.Done():
	}
	return true, err
}

// connect connects and waits for the broker's answer. It gives up after connectTimeout or when
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

func newClientID() string { return "dispatcher-" + strings.ToLower(rand.Text()[:12]) }

// PahoOptions returns options for paho clients of the broker, also for clients outside of this
// package. They replace unsuitable defaults of paho: the session is clean, the protocol is MQTT
// 3.1.1 without a second attempt with 3.1, and paho does not reconnect by itself.
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
		SetPingTimeout(keepAlive * 2 / 5). // paho checks it every quarter of the keepalive, so the second check finds it exceeded
		SetWriteTimeout(writeTimeout)
}

// pahoOptions returns the options of mqttConn. paho delivers messages in order, and intake acknowledges them.
func (c *Client) pahoOptions(ctx context.Context, id string, mqttConn *connection) *paho.ClientOptions {
	return PahoOptions(id, c.options.User, c.options.Password, c.options.KeepAlive).
		AddBroker(c.options.URL).
		SetOrderMatters(true).
		SetAutoAckDisabled(true).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
			c.options.Panicked.Run("receiving", func() { c.intake.receive(m) }) // runs in a goroutine of paho
		}).
		SetConnectionLostHandler(func(_ paho.Client, err error) { mqttConn.lost <- err }).
		SetCustomOpenConnectionFn(func(broker *url.URL, _ paho.ClientOptions) (net.Conn, error) {
			raw, err := dial(ctx, broker, c.options.TLS)
			if err != nil {
				return nil, err
			}
			conn := newBufferedConn(raw)
			mqttConn.opened <- conn
			return conn, nil
		})
}

// Dialer returns a function that opens a network connection to the broker, for clients outside
// of this package. broker has the form of Options.URL. Every write on the connection has a deadline.
func Dialer(broker string, settings *tls.Config) (func(context.Context) (net.Conn, error), error) {
	u, err := parseURL(broker)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, u, settings) }, nil
}

// dial opens a network connection to the broker. It gives up after connectTimeout or when ctx ends.
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
	return deadlineConn{conn, writeTimeout}, nil
}

// deadlineConn is a connection on which every write has a deadline. paho sets a deadline only for its
// publishes. If the broker's machine answers but the broker reads nothing, the write of an
// acknowledgement would block for ever, and so would the ping that detects the trouble.
type deadlineConn struct {
	net.Conn

	timeout time.Duration // the longest time of each write
}

// Write sends p within b.timeout.
func (b deadlineConn) Write(p []byte) (int, error) {
	if err := b.SetWriteDeadline(time.Now().Add(b.timeout)); err != nil {
		return 0, err
	}
	return b.Conn.Write(p)
}

// subscribe subscribes to filter. It refuses a subscription that the broker grants with another QoS than qosReport.
func (c *connection) subscribe(ctx context.Context, filter string) error {
	token := c.paho.Subscribe(filter, qosReport, nil)
	if err := waitToken(token, brokerAnswerTimeout, ctx.Done()); err != nil {
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

// unsubscribe returns nil when the broker has confirmed that it sends no more reports.
func (c *connection) unsubscribe(ctx context.Context, filter string) error {
	c.subscribed.Store(false)
	return waitToken(c.paho.Unsubscribe(filter), brokerAnswerTimeout, ctx.Done())
}

// waitToken waits for the broker's answer and returns its error. It gives up after timeout or when abandon is closed.
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

package mqtt

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
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

	excessCheckEvery = 200 * time.Millisecond
	excessReports    = 400 // excess reports in excessCheckEvery at which the subscription changes to qosExcess
	calmChecks       = 50  // checks in a row with fewer excess reports after which the subscription changes back
)

// connection is one connection to the broker. Each has its own paho client, because after a reconnect, a paho client would deliver outdated
// replies, and would never free the message ids of unacknowledged replies.
type connection struct {
	paho       paho.Client
	opened     chan net.Conn // receives the network connection as soon as it is open, before the CONNACK
	lost       chan error    // receives the reason when the connection is lost
	subscribed atomic.Bool   // The broker has accepted the subscription.
}

// isOpen reports whether the connection is open. It returns false if c is nil.
func (c *connection) isOpen() bool { return c != nil && c.paho.IsConnectionOpen() }

// runConnection opens a connection with this client id, subscribes, and returns when the connection is lost or ctx ends. subscribed reports
// whether the subscription succeeded. If ctx ends after the subscription, the connection stays open and err is nil.
func (c *Client) runConnection(ctx context.Context, clientID string) (subscribed bool, err error) {
	conn := &connection{opened: make(chan net.Conn, 1), lost: make(chan error, 1)}
	conn.paho = paho.NewClient(c.pahoOptions(ctx, clientID, conn))
	if err := conn.connect(ctx); err != nil {
		return false, err
	}
	c.current.Store(conn)
	if err := conn.subscribe(ctx, c.filter, qosSubscription); err != nil {
		conn.paho.Disconnect(disconnectWaitMS)
		return false, err
	}
	conn.subscribed.Store(true)
	c.options.OnConnected()
	c.options.Logger.InfoContext(ctx, "subscribed to the reports of devices", "filter", c.filter)
	return true, c.watchExcess(ctx, conn)
}

// watchExcess adapts the QoS of the subscription to the number of excess reports. It returns the reason if the connection is lost, and nil if
// ctx ends.
//
// With QoS 1, the broker queues the reports that exceed its window of unacknowledged messages. Devices that report far too fast fill this
// queue, and then the broker drops the reports of all devices. With QoS 0, the broker sends all reports at once, and intake drops the
// excess. A device sends a lost report again.
func (c *Client) watchExcess(ctx context.Context, conn *connection) error {
	check := time.NewTicker(excessCheckEvery)
	defer check.Stop()
	qos, calm := byte(qosSubscription), 0
	for {
		select {
		case err := <-conn.lost:
			return err
		case <-ctx.Done():
			return nil
		case <-check.C:
		}
		wanted := qos
		if calm++; c.intake.excess.Swap(0) >= excessReports {
			wanted, calm = byte(qosExcess), 0
		} else if calm >= calmChecks {
			wanted = qosSubscription
		}
		if wanted == qos {
			continue
		}
		if err := conn.subscribe(ctx, c.filter, wanted); err != nil {
			c.options.Logger.WarnContext(ctx, "QoS of the subscription not changed", "qos", wanted, "err", err)
			continue
		}
		c.options.Logger.InfoContext(ctx, "changed the QoS of the subscription to the reports of devices", "qos", wanted)
		qos = wanted
	}
}

// connect connects and waits for the broker's answer, until connectTimeout or until ctx ends.
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

// PahoOptions returns options for a paho client with clean sessions and MQTT 3.1.1 only, which does not reconnect by itself.
func PahoOptions(clientID, user, password string, keepAlive time.Duration) *paho.ClientOptions {
	return paho.NewClientOptions().
		SetClientID(clientID).
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

// pahoOptions returns the options of mqttConn's paho client. paho delivers messages in order, and intake acknowledges them.
func (c *Client) pahoOptions(ctx context.Context, clientID string, mqttConn *connection) *paho.ClientOptions {
	return PahoOptions(clientID, c.options.User, c.options.Password, c.options.KeepAlive).
		AddBroker(c.options.URL).
		SetOrderMatters(true).
		SetAutoAckDisabled(true).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
			c.options.Panicked.Run("receiving", func() { c.intake.receiveReport(m) }) // runs in a goroutine of paho
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

// Dialer returns a function that opens a network connection to the broker. brokerURL has the form of Options.URL. tlsSettings applies only to
// mqtts. If tlsSettings is nil, the system's root certificates are used. Every write has a deadline.
func Dialer(brokerURL string, tlsSettings *tls.Config) (dialBroker func(context.Context) (net.Conn, error), err error) {
	u, err := parseURL(brokerURL)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, u, tlsSettings) }, nil
}

func dial(ctx context.Context, brokerURL *url.URL, tlsSettings *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	open := new(net.Dialer).DialContext
	if brokerURL.Scheme == "mqtts" {
		open = (&tls.Dialer{Config: tlsSettings}).DialContext
	}
	conn, err := open(ctx, "tcp", brokerURL.Host)
	if err != nil {
		return nil, err
	}
	return deadlineConn{conn, writeTimeout}, nil
}

// deadlineConn sets a deadline for every write, because paho sets one only for its publishes. Without it, if the broker reads nothing while
// its machine still answers, an acknowledgement would block for ever, and so would the ping that detects this fault.
type deadlineConn struct {
	net.Conn

	timeout time.Duration // the longest time of each write
}

// Write sends data within the timeout.
func (b deadlineConn) Write(data []byte) (int, error) {
	if err := b.SetWriteDeadline(time.Now().Add(b.timeout)); err != nil {
		return 0, err
	}
	return b.Conn.Write(data)
}

// subscribe subscribes to topicFilter. It returns an error if the broker grants another QoS.
func (c *connection) subscribe(ctx context.Context, topicFilter string, qos byte) error {
	token := c.paho.Subscribe(topicFilter, qos, nil)
	if err := waitForOperation(token, brokerAnswerTimeout, ctx.Done()); err != nil {
		return err
	}
	if answer, ok := token.(*paho.SubscribeToken); ok {
		for _, granted := range answer.Result() {
			if granted != qos {
				return fmt.Errorf("the broker refused the subscription %s, or offers no QoS %d for it", topicFilter, qos)
			}
		}
	}
	return nil
}

// unsubscribe ends the subscription to topicFilter. It returns nil when the broker has confirmed that it sends no more reports.
func (c *connection) unsubscribe(ctx context.Context, topicFilter string) error {
	c.subscribed.Store(false)
	return waitForOperation(c.paho.Unsubscribe(topicFilter), brokerAnswerTimeout, ctx.Done())
}

// waitForOperation waits for the broker's answer to operation and returns its error. It gives up after timeout or when abandon is closed.
func waitForOperation(operation paho.Token, timeout time.Duration, abandon <-chan struct{}) error {
	select {
	case <-operation.Done():
		return operation.Error()
	default:
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-operation.Done():
		return operation.Error()
	case <-timer.C:
		return errors.New("no answer from the broker")
	case <-abandon:
		return errors.New("stopped")
	}
}

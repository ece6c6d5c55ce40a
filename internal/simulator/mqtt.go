package simulator

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
)

const (
	connectTimeout = 5 * time.Second
	pauseMax       = 5 * time.Second // upper limit of the pause between two attempts to connect
	writeTimeout   = time.Second     // longest time that a report blocks the device while its connection breaks
	hangUpTimeout  = 100             // milliseconds
)

// mqttLink sends reports over the device's own connection to the broker. Each connection has its own paho client, so nothing from one
// connection is sent over the next.
type mqttLink struct {
	url, device, token string
	retry              time.Duration               // upper limit of the first random pause between connections; it doubles up to pauseMax
	current            atomic.Pointer[paho.Client] // the newest client that has subscribed: a device subscribes before it reports
	firstAttemptDone   chan struct{}               // closed when the first attempt to connect has ended
	once               sync.Once                   // closes firstAttemptDone
}

func newMQTTLink(url, device, token string, retry time.Duration) *mqttLink {
	return &mqttLink{url: url, device: device, token: token, retry: retry, firstAttemptDone: make(chan struct{})}
}

// open connects in the background, and reconnects whenever the connection is lost.
func (l *mqttLink) open(ctx context.Context, deviceInbox chan<- linkMessage) (hangUp func()) {
	ctx, cancel := context.WithCancel(ctx)
	var connected sync.WaitGroup
	connected.Go(func() { l.stayConnected(ctx, deviceInbox) })
	return func() {
		cancel()
		connected.Wait()
	}
}

// stayConnected keeps the device connected. Random pauses keep the devices of a fleet from reconnecting at once.
func (l *mqttLink) stayConnected(ctx context.Context, deviceInbox chan<- linkMessage) {
	for pause := l.retry; ctx.Err() == nil; pause = min(2*pause, pauseMax) {
		if l.runConnection(ctx, deviceInbox) {
			pause = l.retry
		}
		select {
		case <-time.After(rand.N(pause)): //nolint:gosec // jitter
		case <-ctx.Done():
		}
	}
}

// runConnection connects, and returns when the connection is lost or ctx ends. subscribed is true if reports could be sent.
func (l *mqttLink) runConnection(ctx context.Context, deviceInbox chan<- linkMessage) (subscribed bool) {
	closeFirstAttempt := func() { l.once.Do(func() { close(l.firstAttemptDone) }) }
	defer closeFirstAttempt()
	network, err := l.dialBroker(ctx)
	if err != nil {
		return false
	}
	defer network.Close() // also ends operations that wait for the broker
	lost := make(chan struct{})
	client := paho.NewClient(l.pahoOptions(network).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { deliverMessage(ctx, deviceInbox, parseMQTT(m.Payload())) }).
		SetConnectionLostHandler(func(paho.Client, error) { close(lost) }))
	defer client.Disconnect(hangUpTimeout)
	if !waitSuccess(ctx, client.Connect()) || !waitSuccess(ctx, client.Subscribe("fleet/v1/"+l.device+"/reply", 1, nil)) {
		return false
	}
	l.current.Store(&client)
	closeFirstAttempt()
	select {
	case <-lost:
	case <-ctx.Done():
	}
	return true
}

func (l *mqttLink) dialBroker(ctx context.Context) (net.Conn, error) {
	broker, err := url.Parse(l.url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if broker.Scheme == "mqtts" || broker.Scheme == "ssl" {
		return new(tls.Dialer).DialContext(ctx, "tcp", broker.Host)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", broker.Host)
}

func (l *mqttLink) pahoOptions(networkConn net.Conn) *paho.ClientOptions {
	return paho.NewClientOptions().
		AddBroker(l.url).
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) { return networkConn, nil }).
		SetClientID(l.device).
		SetUsername(l.device).
		SetPassword(l.token).
		SetProtocolVersion(4).
		SetCleanSession(true).
		SetOrderMatters(false). // handlers run concurrently, because a handler may wait for the device
		SetAutoReconnect(false).
		SetConnectRetry(false).
		SetConnectTimeout(connectTimeout).
		SetWriteTimeout(writeTimeout).
		SetKeepAlive(30 * time.Second)
}

// waitSuccess waits for the answer of the broker and reports whether it was a success.
func waitSuccess(ctx context.Context, operation paho.Token) (isSuccess bool) {
	select {
	case <-operation.Done():
		return operation.Error() == nil
	case <-ctx.Done():
		return false
	}
}

// send publishes a report as soon as the first attempt to connect has ended. send returns at once. It does not check
// whether the broker received the report, because the device sends a report again if no reply arrives.
func (l *mqttLink) send(ctx context.Context, outgoing outgoingReport, deviceInbox chan<- linkMessage) {
	select {
	case <-l.firstAttemptDone:
		l.publish(ctx, outgoing, deviceInbox)
	default:
		go func() {
			select {
			case <-l.firstAttemptDone:
			case <-ctx.Done():
			}
			l.publish(ctx, outgoing, deviceInbox)
		}()
	}
}

// publish publishes a report. It delivers a failure to deviceInbox if there is no connection.
func (l *mqttLink) publish(ctx context.Context, outgoing outgoingReport, deviceInbox chan<- linkMessage) {
	client := l.current.Load()
	if client == nil || !(*client).IsConnectionOpen() {
		go deliverMessage(ctx, deviceInbox, linkMessage{id: outgoing.id, garbage: outgoing.id == "", kind: failed})
		return
	}
	(*client).Publish("fleet/v1/"+l.device+"/report", 1, false, outgoing.body)
}

// parseMQTT parses a reply, a push or an error. An error without a report id answers a report whose id could not be read.
func parseMQTT(body []byte) linkMessage {
	var a linkMessage
	if err := json.Unmarshal(body, &a.reply); err != nil {
		return linkMessage{kind: failed}
	}
	a.id = a.reply.Re
	a.retryAfter = time.Duration(a.reply.ReportAfterMS) * time.Millisecond
	switch a.reply.Reason {
	case reasonInvalid, reasonTooLarge:
		a.kind, a.garbage = refused, a.id == ""
	case reasonForbidden:
		a.kind = forbidden
	case reasonBusyServer:
		a.kind = failed
	}
	return a
}

package simulator

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
)

// mqttLink sends reports on the device's own connection to the broker.
type mqttLink struct {
	url, device, token string
	client             paho.Client
	subscribed         atomic.Bool // a device subscribes before it reports
	first              sync.Once
	ready              chan struct{} // closed when it has subscribed once
}

func newMQTTLink(url, device, token string) *mqttLink {
	return &mqttLink{url: url, device: device, token: token, ready: make(chan struct{})}
}

func (l *mqttLink) reportTopic() string { return "fleet/v1/" + l.device + "/report" }
func (l *mqttLink) replyTopic() string  { return "fleet/v1/" + l.device + "/reply" }

// open connects in the background, and again whenever the connection is lost.
func (l *mqttLink) open(ctx context.Context, inbox chan<- arrival) (hangUp func()) {
	receive := func(_ paho.Client, m paho.Message) { deliver(ctx, inbox, parseMQTT(m.Payload())) }
	l.client = paho.NewClient(paho.NewClientOptions().
		AddBroker(l.url).
		SetClientID(l.device).
		SetUsername(l.device).
		SetPassword(l.token).
		SetCleanSession(true).
		SetOrderMatters(false). // receive may wait for the device
		SetConnectRetry(true).
		SetConnectRetryInterval(2 * time.Second).
		SetAutoReconnect(true).
		SetMaxReconnectInterval(5 * time.Second).
		SetConnectTimeout(5 * time.Second).
		SetWriteTimeout(5 * time.Second).
		SetKeepAlive(30 * time.Second).
		SetConnectionLostHandler(func(paho.Client, error) { l.subscribed.Store(false) }).
		SetOnConnectHandler(func(c paho.Client) { l.subscribe(c, receive) }))
	l.client.Connect()
	return func() { l.client.Disconnect(100) }
}

func (l *mqttLink) subscribe(c paho.Client, receive paho.MessageHandler) {
	token := c.Subscribe(l.replyTopic(), 1, receive)
	go func() {
		if token.Wait() && token.Error() == nil {
			l.subscribed.Store(true)
			l.first.Do(func() { close(l.ready) })
		}
	}()
}

// firstTimeout is how long the first report waits for the connection.
const firstTimeout = 5 * time.Second

// send publishes a report, the first when there is a connection. It is not
// told whether the broker has it: that is what the device's re-send is for.
func (l *mqttLink) send(ctx context.Context, p parcel, inbox chan<- arrival) {
	select {
	case <-l.ready:
		l.publish(ctx, p, inbox)
	default:
		go func() {
			select {
			case <-l.ready:
			case <-time.After(firstTimeout):
			case <-ctx.Done():
			}
			l.publish(ctx, p, inbox)
		}()
	}
}

func (l *mqttLink) publish(ctx context.Context, p parcel, inbox chan<- arrival) {
	if !l.subscribed.Load() || !l.client.IsConnectionOpen() {
		go deliver(ctx, inbox, arrival{id: p.id, garbage: p.id == "", verdict: failed})
		return
	}
	l.client.Publish(l.reportTopic(), 1, false, p.body)
}

// parseMQTT reads a reply, a push or an error. An error without the report's
// id answers what had none that could be read.
func parseMQTT(body []byte) arrival {
	var a arrival
	if err := json.Unmarshal(body, &a.reply); err != nil {
		return arrival{verdict: failed}
	}
	a.id = a.reply.Re
	a.wait = time.Duration(a.reply.ReportAfterMS) * time.Millisecond
	switch a.reply.Reason {
	case reasonInvalid, reasonTooLarge:
		a.verdict, a.garbage = refused, a.id == ""
	case reasonForbidden:
		a.verdict = forbidden
	case reasonBusyServer:
		a.verdict = failed
	}
	return a
}

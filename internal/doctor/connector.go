package doctor

import (
	"context"
	"errors"
	"net"
	"net/url"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/mqtt"
)

// listenTime is the time that the doctor waits for a message that must not arrive.
const listenTime = 300 * time.Millisecond

// brokerConnector opens the doctor's test connections to the broker, one for each account.
type brokerConnector struct {
	options mqtt.Options
	topic   string // topic of replies to a device that does not exist
}

// brokerAccount is an account with which the doctor connects to the MQTT broker.
type brokerAccount struct{ id, user, password string }

// connect connects with an account. If the broker refuses the connection, connect returns the
// reason as the error.
func (v brokerConnector) connect(ctx context.Context, account brokerAccount) (paho.Client, error) {
	dial, err := mqtt.Dialer(v.options.URL, v.options.TLS)
	if err != nil {
		return nil, err
	}
	network, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	client := paho.NewClient(mqtt.PahoOptions(account.id, account.user, account.password, mqtt.KeepAlive).
		AddBroker("tcp://broker"). // a placeholder that is never resolved: the connection is already open
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) { return network, nil }))
	if err := waitForOperation(ctx, client.Connect()); err != nil {
		_ = network.Close()
		return nil, err
	}
	return client, nil
}

// subscribe subscribes to topicFilter. It sends the topic of each received message to topics, and drops it if the channel is full.
func subscribe(ctx context.Context, client paho.Client, topicFilter string, topics chan<- string) error {
	token := client.Subscribe(topicFilter, 1, func(_ paho.Client, m paho.Message) {
		select {
		case topics <- m.Topic():
		default:
		}
	})
	if err := waitForOperation(ctx, token); err != nil {
		return err
	}
	if granted, ok := token.(*paho.SubscribeToken); ok {
		for _, qos := range granted.Result() { // for a shared subscription, the key in the result differs from topicFilter
			if qos != 1 {
				return errors.New("the broker refused the subscription to " + topicFilter + ", or does not grant QoS 1")
			}
		}
	}
	return nil
}

// waitForOperation waits for the answer of the broker to operation, an operation of paho, and returns its error.
func waitForOperation(ctx context.Context, operation paho.Token) error {
	select {
	case <-operation.Done():
		return operation.Error()
	case <-ctx.Done():
		return errors.New("no answer from the broker")
	}
}

// publishWake sends a wake to topic, a topic of replies to a device.
func publishWake(ctx context.Context, client paho.Client, topic string) error {
	return waitForOperation(ctx, client.Publish(topic, 1, false, devices.EncodeWake(0)))
}

package doctor

import (
	"context"
	"errors"
	"net"
	"net/url"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices/mqtt"
)

// listens is the time that the doctor waits for a message that must not arrive.
const listens = 300 * time.Millisecond

// visitor connects to the broker with several accounts, one connection for each.
type visitor struct {
	options mqtt.Options
	topic   string // topic of replies to a device that does not exist
}

// account is an account at the broker.
type account struct{ id, user, password string }

// enter connects with an account. If the broker refuses, it returns the refusal as the error.
func (v visitor) enter(ctx context.Context, a account) (paho.Client, error) {
	dial, err := mqtt.Dialer(v.options.URL, v.options.TLS)
	if err != nil {
		return nil, err
	}
	network, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	client := paho.NewClient(mqtt.PahoOptions(a.id, a.user, a.password, mqtt.KeepAlive).
		AddBroker("tcp://broker"). // a placeholder that is never resolved: the connection is already open
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) { return network, nil }))
	if err := settled(ctx, client.Connect()); err != nil {
		_ = network.Close()
		return nil, err
	}
	return client, nil
}

// subscribe subscribes to a filter. It sends the topic of each received message to heard, and drops it
// if the channel is full.
func subscribe(ctx context.Context, client paho.Client, filter string, heard chan<- string) error {
	token := client.Subscribe(filter, 1, func(_ paho.Client, m paho.Message) {
		select {
		case heard <- m.Topic():
		default:
		}
	})
	if err := settled(ctx, token); err != nil {
		return err
	}
	if granted, ok := token.(*paho.SubscribeToken); ok {
		for _, qos := range granted.Result() { // for a shared subscription, the key in the result differs from filter
			if qos != 1 {
				return errors.New("the broker refused the subscription " + filter + ", or offers no QoS 1 for it")
			}
		}
	}
	return nil
}

// settled waits for the answer of the broker.
func settled(ctx context.Context, token paho.Token) error {
	select {
	case <-token.Done():
		return token.Error()
	case <-ctx.Done():
		return errors.New("no answer from the broker")
	}
}

// hears reports whether a message with this topic arrives soon.
func hears(ctx context.Context, heard <-chan string, topic string) bool {
	late := time.After(listens)
	for {
		select {
		case came := <-heard:
			if came == topic {
				return true
			}
		case <-late:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

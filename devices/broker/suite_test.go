package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"go.uber.org/goleak"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	internalUser   = "$dispatcher"
	passwordPrefix = "secret-of-"
	patience       = time.Minute // A machine that stalls for a while does not exceed it.
)

// startBroker starts an embedded broker. The password of each device is "secret-of-<id>".
func startBroker(t *testing.T, logger *slog.Logger) *broker.Broker {
	t.Helper()
	b := openBroker(t, broker.Options{
		Authenticate: func(_ context.Context, device devices.ID, given string) error {
			if given != passwordPrefix+string(device) {
				return errors.New("wrong password")
			}
			return nil
		},
		Logger: logger,
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return b
}

// openBroker starts an embedded broker. The test must stop it.
func openBroker(t *testing.T, o broker.Options) *broker.Broker {
	t.Helper()
	var err error
	if o.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	o.Internal = broker.Credentials{User: internalUser, Password: "internal"}
	b, err := broker.New(o)
	must.Succeed(t, err)
	must.Succeed(t, b.Start())
	return b
}

// testClient is an MQTT client that stores the messages that it receives.
type testClient struct {
	paho.Client
	received chan string // topic and body of each message
	lost     chan struct{}
}

func clientOptions(b *broker.Broker, id, user, password string) (*paho.ClientOptions, *testClient) {
	c := &testClient{received: make(chan string, 100), lost: make(chan struct{})}
	o := paho.NewClientOptions().AddBroker("tcp://" + b.Addr().String()).SetClientID(id).SetUsername(user).SetPassword(password).
		SetAutoReconnect(false).SetConnectTimeout(patience).
		SetConnectionLostHandler(func(paho.Client, error) { close(c.lost) })
	return o, c
}

func (c *testClient) connect(t *testing.T, o *paho.ClientOptions) error {
	t.Helper()
	c.Client = paho.NewClient(o.SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
		select {
		case c.received <- m.Topic() + " " + string(m.Payload()):
		case <-t.Context().Done(): // the test reads no more messages
		}
	}))
	token := c.Connect()
	if !token.WaitTimeout(patience) {
		t.Fatal("no answer to CONNECT")
	}
	t.Cleanup(func() { c.Disconnect(50) })
	return token.Error()
}

func connectDevice(t *testing.T, b *broker.Broker, id string) *testClient {
	t.Helper()
	o, c := clientOptions(b, id, id, passwordPrefix+id)
	if err := c.connect(t, o); err != nil {
		t.Fatalf("device %s: %v", id, err)
	}
	return c
}

// connectDispatcher connects the client of the dispatcher inside the process, and subscribes it to the reports.
func connectDispatcher(t *testing.T, b *broker.Broker) *testClient {
	t.Helper()
	o, c := clientOptions(b, "dispatcher-1", internalUser, "internal")
	must.Succeed(t, c.connect(t, o))
	if code := c.subscribe(t, devices.SharedReportFilter(devices.DefaultGroup)); code != 1 {
		t.Fatalf("subscription: %#x", code)
	}
	return c
}

// subscribe returns the broker's answer to a SUBSCRIBE: the granted QoS, or 0x80 for a refusal.
func (c *testClient) subscribe(t *testing.T, filter string) byte {
	t.Helper()
	token, ok := c.SubscribeMultiple(map[string]byte{filter: 1}, nil).(*paho.SubscribeToken)
	if !ok || !token.WaitTimeout(patience) {
		t.Fatalf("no answer to SUBSCRIBE %s", filter)
	}
	for _, code := range token.Result() {
		return code
	}
	t.Fatalf("SUBSCRIBE %s: %v", filter, token.Error())
	return 0
}

func (c *testClient) publish(t *testing.T, topic, body string, qos byte) {
	t.Helper()
	if token := c.Publish(topic, qos, false, body); !token.WaitTimeout(patience) || token.Error() != nil {
		t.Fatalf("PUBLISH %s: %v", topic, token.Error())
	}
}

func (c *testClient) nextMessage(t *testing.T) string {
	t.Helper()
	return await.Receive(t, c.received, "nothing was received")
}

// expectEnd waits until the broker has ended the connection of this client. why names the reason for the failure
// message.
func (c *testClient) expectEnd(t *testing.T, why string) {
	t.Helper()
	select {
	case <-c.lost:
	case <-time.After(patience):
		t.Errorf("%s did not end the connection", why)
	}
}

// rawConnect connects a device over a plain connection that no client reads. It returns after the CONNACK.
func rawConnect(t *testing.T, addr, id, password string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must.Succeed(t, err)
	text := func(s string) string { return string([]byte{0, byte(len(s))}) + s }
	packet := text("MQTT") + "\x04\xc2\x00\x3c" + text(id) + text(id) + text(password)
	_, err = conn.Write(append([]byte{0x10, byte(len(packet))}, packet...))
	must.Succeed(t, err)
	var answer [4]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil || answer[3] != 0 {
		t.Fatalf("CONNACK %x, %v", answer, err)
	}
	return conn
}

// expectLogged waits until the log contains the words.
func expectLogged(t *testing.T, log *await.Output, words ...string) {
	t.Helper()
	await.True(t, fmt.Sprintf("the log entries %q", words), func() bool {
		text := log.String()
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	}, log.String)
}

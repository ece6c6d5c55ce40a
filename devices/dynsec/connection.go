package dynsec

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

const (
	requestTopic  = "$CONTROL/dynamic-security/v1"
	responseTopic = requestTopic + "/response"
)

// errLost means that the connection ended or was closed.
var errLost = errors.New("the connection to the broker was lost")

// connection is one connection to the broker. Each has its own paho client, so that paho sends no command again after a reconnect.
type connection struct {
	paho     paho.Client
	messages chan []byte   // messages of the plugin
	lost     chan struct{} // closed when the connection is lost
}

// connect opens a connection and makes sure that the rights are set up.
func (c *Client) connect(ctx context.Context) (*connection, error) {
	for range 2 { // The second attempt is needed because giving the account its role ends this session.
		conn, err := c.open(ctx)
		if err != nil {
			return nil, err
		}
		err = conn.run(ctx, func(conn *connection) error { return c.ensureRights(ctx, conn) })
		if err == nil {
			return conn, nil
		}
		conn.close()
		if !errors.Is(err, errRightsChanged) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the rights of the account %s at the broker changed again after they were set", c.options.User)
}

// open opens a connection and subscribes to the plugin's answers.
func (c *Client) open(ctx context.Context) (*connection, error) {
	network, err := c.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to the broker: %w", err)
	}
	conn := &connection{messages: make(chan []byte, 16), lost: make(chan struct{})}
	conn.paho = paho.NewClient(c.pahoOptions(network, conn))
	stop := rescue.After(ctx, network.Close)
	defer stop()
	token := conn.paho.Connect()
	<-token.Done() // This ends at the latest when ctx ends, which closes the network connection.
	if err = token.Error(); err == nil {
		err = conn.subscribe(ctx)
	}
	if err != nil {
		conn.close()
		_ = network.Close()
		return nil, fmt.Errorf("connecting to the broker: %w", cmp.Or(ctx.Err(), err))
	}
	return conn, nil
}

// subscribe subscribes to the plugin's answers. It also waits for the end of ctx, because open then closes the network connection, and paho
// does not notice that.
func (c *connection) subscribe(ctx context.Context) error {
	token := c.paho.Subscribe(responseTopic, 1, nil)
	select {
	case <-token.Done():
		return token.Error()
	case <-c.lost:
		return fmt.Errorf("subscribing to the plugin's answers: %w", errLost)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pahoOptions returns the options of a paho client that uses networkConn and passes its messages to pluginConn.
func (c *Client) pahoOptions(networkConn net.Conn, pluginConn *connection) *paho.ClientOptions {
	return mqtt.PahoOptions(clientID, c.options.User, c.options.Password, mqtt.KeepAlive).
		AddBroker("tcp://broker"). // required by paho but not used: the network connection is already open
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) { return networkConn, nil }).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) {
			select {
			case pluginConn.messages <- m.Payload():
			default: // There are more answers than expected: drop this one.
			}
		}).
		SetConnectionLostHandler(func(paho.Client, error) { close(pluginConn.lost) })
}

// run calls work. If ctx has ended by then, run closes the connection, because a command without an answer must not take effect after later
// commands.
func (c *connection) run(ctx context.Context, work func(*connection) error) error {
	err := work(c)
	if ctx.Err() != nil {
		c.close()
	}
	return err
}

func (c *connection) close() { c.paho.Disconnect(0) }

// ask sends commands to the plugin in one message, and returns their answers in order.
func (c *connection) ask(ctx context.Context, commands ...command) ([]pluginAnswer, error) {
	correlationID := rand.Text()
	for i := range commands {
		commands[i].CorrelationID = correlationID
	}
	body, err := json.Marshal(map[string]any{"commands": commands})
	if err != nil {
		return nil, err
	}
	if !c.paho.IsConnectionOpen() {
		return nil, errLost
	}
	c.paho.Publish(requestTopic, 0, false, body) // QoS 0 is enough: the plugin's answer confirms the commands.
	for {
		select {
		case text := <-c.messages:
			if found, ok := parseAnswers(correlationID, text); ok && len(found) == len(commands) {
				return found, nil
			}
		case <-c.lost:
			return nil, errLost
		case <-ctx.Done():
			return nil, fmt.Errorf("no answer from the dynamic-security plugin: %w", ctx.Err())
		}
	}
}

// parseAnswers returns the answers in received. ok is false if received is not valid or has another correlation id.
func parseAnswers(correlationID string, received []byte) (answers []pluginAnswer, ok bool) {
	var message struct{ Responses []pluginAnswer }
	if json.Unmarshal(received, &message) != nil {
		return nil, false
	}
	for _, a := range message.Responses {
		if a.CorrelationID != correlationID {
			return nil, false
		}
	}
	return message.Responses, true
}

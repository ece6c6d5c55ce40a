// Package broker is the embedded MQTT broker of `dispatcher dev` and package check: mochi with rules that deny by default. It stores nothing
// on disk and keeps no session of a disconnected client.
//
// A device connects with its id as user name. Its client id is its id, or begins with its id and a '/' (mosquitto_sub -i my-meter/sub). It
// may publish to its own report topic and subscribe to its own reply topic, and nothing else. A denied subscription is answered with a
// failure code. A denied publish with QoS 0 is dropped. A denied publish with QoS 1 or 2 ends the connection, because MQTT 3.1.1 has no error
// response to a publish.
package broker

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Bounds of the resources that clients can use.
const (
	maxConnections      = 10_000
	maxPacket           = 128 << 10        // bytes; a report has at most 64 KiB
	maxWritesPending    = 2048             // messages that wait for a client that does not read; more are dropped
	maxInflight         = 8192             // messages that a client has not acknowledged; more are dropped
	receiveMaximum      = 64               // QoS 2 messages that a client may have open
	maxKeepalive        = 20 * time.Minute // also for clients that request no keepalive
	handshakeTimeout    = 10 * time.Second // from accepting a connection to its CONNECT
	writeTimeout        = 2 * time.Second  // for one write to a client that does not read
	authenticateTimeout = 5 * time.Second  // for one call of Options.Authenticate

	// The broker reads more slowly from a device that sends faster than publishRate, so that TCP slows the device down. At full speed, the
	// messages of this device would displace messages of other devices in the queue of the dispatcher's client. Reports have another
	// limit: Options.Pace of package mqtt.
	publishRate  = 200 // messages a second of all connections of one device
	publishBurst = 400
	publishPause = 100 * time.Millisecond // a client above the rate is not read for this time
)

// Credentials are the user name and password of the dispatcher's own client.
type Credentials struct {
	User     string // must not be a valid device id, so that no device can have it
	Password string
}

// Options configures a Broker. Listener, Authenticate and Internal are required.
type Options struct {
	Listener net.Listener // Stop closes it.
	// Authenticate returns nil if password is the device's password. It is called once for each connection, from many goroutines, and must
	// return when ctx ends.
	Authenticate func(ctx context.Context, device devices.ID, password string) error
	// OnRefused is called for each refused session, with the error of Authenticate or the broken rule. It may be nil.
	OnRefused func(ctx context.Context, r RefusedSession)
	Internal  Credentials
	Logger    *slog.Logger
}

// RefusedSession is a refused attempt to open a session.
type RefusedSession struct {
	User   string // user name as the client sent it
	Remote string // address with port
	Err    error
}

// Broker is an MQTT 3.1.1 and 5 broker on one listener.
type Broker struct {
	server   *mqtt.Server
	listener *listener
	cancel   context.CancelFunc
}

// New returns a broker that accepts no connections before Start.
func New(options Options) (*Broker, error) {
	switch {
	case options.Listener == nil || options.Authenticate == nil:
		return nil, errors.New("broker: listener and authenticate are required")
	case options.Internal.User == "" || options.Internal.Password == "":
		return nil, errors.New("broker: internal user and password are required")
	}
	if _, err := devices.ParseID(options.Internal.User); err == nil {
		return nil, errors.New("broker: the internal user must not be a valid device id")
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	life, cancel := context.WithCancel(context.Background())
	if options.OnRefused == nil {
		options.OnRefused = func(context.Context, RefusedSession) {}
	}
	authenticate := func(device devices.ID, password string) error {
		ctx, cancel := context.WithTimeout(life, authenticateTimeout)
		defer cancel()
		// A goroutine of the MQTT library (mochi) makes this call, so a panic must become an error.
		err := rescue.Call(func() error { return options.Authenticate(ctx, device, password) })
		if fault := (*rescue.Panic)(nil); errors.As(err, &fault) {
			options.Logger.ErrorContext(ctx, "panic while authenticating a device", "device", device, "err", err)
		}
		return err
	}
	onRefused := func(r RefusedSession) { options.OnRefused(life, r) }
	b := &Broker{server: newServer(options.Logger), listener: newListener(options.Listener), cancel: cancel}
	err := errors.Join(
		b.server.AddHook(&rules{authenticate: authenticate, onRefused: onRefused, internal: options.Internal}, nil),
		b.server.AddHook(&slowdown{limiter: pace.New(pace.Options{Rate: publishRate, Burst: publishBurst}), internalUser: options.Internal.User, stopped: life.Done()}, nil),
		b.server.AddListener(listeners.NewNet("mqtt", b.listener)),
	)
	if err != nil {
		cancel()
		return nil, err
	}
	return b, nil
}

// newServer returns mochi's MQTT server with the bounds of this package.
func newServer(logger *slog.Logger) *mqtt.Server {
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumPacketSize = maxPacket
	capabilities.MaximumClientWritesPending = maxWritesPending
	capabilities.MaximumInflight = maxInflight
	capabilities.ReceiveMaximum = receiveMaximum
	capabilities.MaximumMessageExpiryInterval = int64(time.Hour / time.Second)
	capabilities.MinimumProtocolVersion = 4 // MQTT 3.1.1
	capabilities.TopicAliasMaximum = 0      // no client needs aliases, and the rules compare topics
	capabilities.RetainAvailable = 0        // no client reads retained messages, and a retained report would be outdated a day later
	return mqtt.New(&mqtt.Options{
		Capabilities:           capabilities,
		Logger:                 slog.New(quietHandler{logger.Handler()}),
		SysTopicResendInterval: int64(time.Hour / time.Second), // no client may read $SYS
	})
}

// Start accepts and serves connections in background goroutines.
func (b *Broker) Start() error { return b.server.Serve() }

// Addr returns the address of the listener.
func (b *Broker) Addr() net.Addr { return b.listener.Addr() }

// Disconnect ends the open sessions of a device under all of its client ids. Options.Authenticate decides whether the device may open
// another session.
func (b *Broker) Disconnect(device devices.ID) {
	for _, client := range b.server.Clients.GetAll() {
		if string(client.Properties.Username) == string(device) {
			client.Stop(packets.ErrAdministrativeAction)
		}
	}
}

// Stop closes the listener and all connections. It returns the error of ctx if a client's goroutine does not end in time. It must be called
// at most once.
func (b *Broker) Stop(ctx context.Context) error {
	b.cancel()
	b.listener.closeAll(ctx)
	return rescue.CallWithin(ctx, func() error {
		// mochi's Close deadlocks if a client disconnects while Close runs. So first wait until all clients have disconnected.
		b.server.Listeners.ClientsWg.Wait()
		return b.server.Close()
	})
}

// matches reports whether user and password equal the credentials. It compares in constant time.
func (c Credentials) matches(user, password string) bool {
	userOK := subtle.ConstantTimeCompare([]byte(c.User), []byte(user))
	passwordOK := subtle.ConstantTimeCompare([]byte(c.Password), []byte(password))
	return userOK&passwordOK == 1
}

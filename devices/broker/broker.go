// Package broker is the MQTT broker inside of `dispatcher dev`: mochi behind
// rules that deny by default. It keeps nothing on disk and no session of a
// client that has gone.
//
// A device connects with its id as user name; its client id is the same, or
// begins with it and a '/' (mosquitto_sub -i my-meter/sub). It may publish to its
// own report topic and subscribe to its own reply topic, nothing else. A denied
// subscription is answered with a failure code; a denied publish of QoS 0 is
// dropped, one of QoS 1 or 2 ends the connection, as MQTT 3.1.1 has no other way
// to say so.
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
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Bounds of what clients can make the broker hold.
const (
	maxConnections      = 10_000
	maxPacket           = 128 << 10        // bytes; a report has at most 64 KiB
	maxWritesPending    = 2048             // messages waiting for a client that does not read; beyond: dropped
	maxInflight         = 8192             // messages a client has not acknowledged; beyond: dropped
	receiveMaximum      = 64               // QoS 2 messages a client may have open
	maxKeepalive        = 20 * time.Minute // also of clients that ask for none
	handshakeTimeout    = 10 * time.Second // from accepting a connection to its CONNECT
	writeTimeout        = 2 * time.Second  // of one write to a client that does not read
	authenticateTimeout = 5 * time.Second
)

// Credentials of the dispatcher's own client.
type Credentials struct {
	User     string // not a valid device id, so that no device can have it
	Password string
}

// Options of a Broker; all but Logger are required.
type Options struct {
	Listener net.Listener // closed by Stop
	// Authenticate returns nil if this is the device's password. It is called
	// once per connection, from many goroutines, and must end with ctx.
	Authenticate func(ctx context.Context, device devices.ID, password string) error
	// Refused is told of each session that was refused, with the error of
	// Authenticate or one that says which rule was broken. Default: nobody is told.
	Refused  func(ctx context.Context, r Refusal)
	Internal Credentials
	Logger   *slog.Logger
}

// Refusal is a session that was refused.
type Refusal struct {
	User   string // as the client wrote it
	Remote string // address, with its port
	Err    error
}

// Broker is an MQTT 3.1.1 and 5 broker on one listener.
type Broker struct {
	server   *mqtt.Server
	listener *listener
	cancel   context.CancelFunc
}

// New returns a broker that does not serve yet. Errors are wrong options.
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
	if options.Refused == nil {
		options.Refused = func(context.Context, Refusal) {}
	}
	authenticate := func(device devices.ID, password string) error {
		ctx, cancel := context.WithTimeout(life, authenticateTimeout)
		defer cancel()
		// In the client's goroutine, which is mochi's.
		err := rescue.Call(func() error { return options.Authenticate(ctx, device, password) })
		if fault := (*rescue.Panic)(nil); errors.As(err, &fault) {
			options.Logger.ErrorContext(ctx, "authenticating a device", "device", device, "err", err)
		}
		return err
	}
	refused := func(r Refusal) { options.Refused(life, r) }
	b := &Broker{server: newServer(options.Logger), listener: bound(options.Listener), cancel: cancel}
	err := errors.Join(
		b.server.AddHook(&rules{authenticate: authenticate, refused: refused, internal: options.Internal}, nil),
		b.server.AddListener(listeners.NewNet("mqtt", b.listener)),
	)
	if err != nil {
		cancel()
		return nil, err
	}
	return b, nil
}

func newServer(logger *slog.Logger) *mqtt.Server {
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumPacketSize = maxPacket
	capabilities.MaximumClientWritesPending = maxWritesPending
	capabilities.MaximumInflight = maxInflight
	capabilities.ReceiveMaximum = receiveMaximum
	capabilities.MaximumMessageExpiryInterval = int64(time.Hour / time.Second)
	capabilities.MinimumProtocolVersion = 4 // MQTT 3.1.1
	capabilities.TopicAliasMaximum = 0      // nobody needs it, and the rules are about topics
	capabilities.RetainAvailable = 0        // nobody reads retained messages: a report is outdated a day later
	return mqtt.New(&mqtt.Options{
		Capabilities:           capabilities,
		Logger:                 slog.New(quiet{logger.Handler()}),
		SysTopicResendInterval: int64(time.Hour / time.Second), // nobody may read $SYS
	})
}

// Start serves in the background.
func (b *Broker) Start() error { return b.server.Serve() }

// Addr is the address of the listener.
func (b *Broker) Addr() net.Addr { return b.listener.Addr() }

// Disconnect ends the sessions of a device that are open now, all of its client
// ids. Whether it may open another one is Options.Authenticate's to say.
func (b *Broker) Disconnect(device devices.ID) {
	for _, client := range b.server.Clients.GetAll() {
		if string(client.Properties.Username) == string(device) {
			client.Stop(packets.ErrAdministrativeAction)
		}
	}
}

// Stop closes the listener and all connections. It returns the error of ctx
// when a client's goroutine did not end in time. Stop at most once.
func (b *Broker) Stop(ctx context.Context) error {
	b.cancel()
	b.listener.closeAll(ctx)
	return rescue.Within(ctx, func() error {
		// mochi's Close takes a read lock of its clients twice, and deadlocks
		// with a client that leaves in between: they have all left before.
		b.server.Listeners.ClientsWg.Wait()
		return b.server.Close()
	})
}

// match compares credentials without telling by its time how far they agree.
func (c Credentials) match(user, password string) bool {
	userOK := subtle.ConstantTimeCompare([]byte(c.User), []byte(user))
	passwordOK := subtle.ConstantTimeCompare([]byte(c.Password), []byte(password))
	return userOK&passwordOK == 1
}

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/localdev"
	"github.com/fleetslots/dispatcher/store"
)

// internalUser is the dispatcher's account at the embedded broker. It is not a valid device id.
const internalUser = "$dispatcher"

const brokerGrace = 5 * time.Second

// DevOptions configure the embedded mode.
type DevOptions struct {
	Listen        string // address for HTTP
	ListenMayMove bool   // if the port is taken, use the next free port
	MQTT          string // address of the embedded MQTT broker
	MQTTMayMove   bool
	RedisServer   string        // the program redis-server, which is started for this process alone; empty means an in-process Redis
	GuardArgs     []string      // child.Config.GuardArgs for RedisServer
	Data          string        // folder of the ledger and the tokens; created if it is missing
	AnnounceDirs  []string      // folders in which the commands on this machine look for the server
	Program       string        // how a shell in the current folder calls this program; empty means dispatcher
	ReportPeriod  time.Duration // report period of idle devices
	Version       string
	Logger        *slog.Logger
}

// DevServer is a dispatcher with all its servers embedded: SQLite, an in-process Redis that runs the same Lua scripts (or a private
// redis-server), and an MQTT broker. It is for trials on one machine. The ledger survives restarts.
type DevServer struct {
	URL, MQTTURL           string
	AdminToken, FleetToken string
	Data                   string
	SignInURL              string // address that signs a browser in once
	Program                string // how a shell calls this program
	Redis                  string // kind of Redis, as text for people

	app          *App
	redisEnded   <-chan struct{} // closed when the private redis-server has ended; nil without one
	broker       *broker.Broker
	announceDirs []string
	log          *slog.Logger
}

// NewDev opens the ledger in the folder options.Data and binds the addresses. The server starts only when Run is called.
func NewDev(ctx context.Context, options DevOptions) (_ *DevServer, err error) {
	var opened cleanup
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.closeAll(context.WithoutCancel(ctx)))
		}
	}()
	d := &DevServer{Data: options.Data, Program: cmp.Or(options.Program, "dispatcher"), Redis: "in-process Redis", announceDirs: options.AnnounceDirs, log: options.Logger}
	if options.RedisServer != "" {
		d.Redis = "a private " + options.RedisServer
	}
	if err := d.prepareFolder(options, &opened); err != nil {
		return nil, err
	}
	httpListener, err := listenOn(ctx, options.Listen, options.ListenMayMove)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	opened.add("http", httpListener.Close)
	mqttListener, err := listenOn(ctx, options.MQTT, options.MQTTMayMove)
	if err != nil {
		return nil, fmt.Errorf("--mqtt-listen: %w", err)
	}
	opened.add("mqtt", mqttListener.Close)
	warnIfReachableFromNetwork(ctx, options.Logger, "--listen", httpListener.Addr())
	warnIfReachableFromNetwork(ctx, options.Logger, "--mqtt-listen", mqttListener.Addr())
	d.URL = "http://" + httpListener.Addr().String()
	d.MQTTURL = "mqtt://" + mqttListener.Addr().String()
	b, err := d.openEmbedded(ctx, options, &opened)
	if err != nil {
		return nil, err
	}
	config := d.newConfig(options)
	if err := config.Validate(); err != nil {
		return nil, err
	}
	b.accounts = embeddedBrokerAccounts{func() *broker.Broker { return d.broker }}
	b.signInLink = credentials.NewToken()
	d.SignInURL = d.URL + "/sign-in?link=" + b.signInLink
	d.app = assembleApp(config, options.Logger, options.Version, b, newTransports(listeners{device: httpListener}, options.Logger)) //nolint:contextcheck // a handler uses the context of its request
	if err := d.connectBroker(mqttListener, options.Logger, &opened); err != nil {                                                  //nolint:contextcheck // the broker lives until it is closed
		return nil, err
	}
	// From here on the app closes the resources: first the broker, which asks the ledger, and last the
	// lock of the folder.
	d.app.cleanup = opened
	return d, nil
}

// newConfig returns the settings of dev. A setting that is missing here has the zero value, not its default in Settings.
func (d *DevServer) newConfig(options DevOptions) Config {
	return Config{
		AdminToken: d.AdminToken, FleetToken: d.FleetToken, FleetTokenMode: string(credentials.FleetAny),
		ReapInterval: time.Second, ReconcileInterval: 10 * time.Second,
		LeaseMargin: 10 * time.Second, LeaseMin: time.Second, ReportPeriod: options.ReportPeriod, LongPollMax: time.Minute,
		ReportRate: "20", ReportBurst: "100",
		MQTTProvision: provisionOff, Web: webOn, Migrate: settingOn, HawkbitTenant: defaultTenant, RegistrationApproval: settingOff, LogFormat: "text", LogLevel: "info",
	}
}

// prepareFolder creates the folder options.Data, locks it for this process and reads its tokens.
func (d *DevServer) prepareFolder(options DevOptions, opened *cleanup) error {
	if err := os.MkdirAll(options.Data, 0o700); err != nil {
		return err
	}
	if err := checkFolder(options.Data); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(options.Data, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	opened.add("lock", lock.Close)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another dispatcher uses the folder %s: %w", options.Data, err)
	}
	if d.AdminToken, err = readOrCreateToken(filepath.Join(options.Data, "admin-token")); err != nil {
		return err
	}
	d.FleetToken, err = readOrCreateToken(filepath.Join(options.Data, "fleet-token"))
	return err
}

// checkFolder refuses a folder in which another user may have put a link, so that dev would write or read elsewhere.
func checkFolder(folder string) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("--data %s: every user of this machine may write to it (mode %03o); use another folder, or run chmod o-w", folder, info.Mode().Perm())
	}
	for _, name := range []string{"lock", "admin-token", "fleet-token", "ledger.db", "ledger.db-wal", "ledger.db-shm"} {
		info, err := os.Lstat(filepath.Join(folder, name))
		if err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("--data %s: %s is a link or no file; remove it", folder, name)
		}
	}
	return nil
}

// readOrCreateToken reads a token from the file at path. If there is no token, it creates one and stores it.
func readOrCreateToken(path string) (token string, err error) {
	content, err := os.ReadFile(path)
	if token := strings.TrimSpace(string(content)); err == nil && token != "" {
		return token, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	token = credentials.NewToken()
	return token, os.WriteFile(path, []byte(token+"\n"), 0o600)
}

// openEmbedded opens a Redis, and the SQLite ledger in the folder options.Data. It adds the steps that close both to opened.
func (d *DevServer) openEmbedded(ctx context.Context, options DevOptions, opened *cleanup) (backends, error) {
	ledger, err := store.OpenSQLite(ctx, filepath.Join(options.Data, "ledger.db"))
	if err != nil {
		return backends{}, err
	}
	opened.add("ledger", ledger.Close)
	if _, err := ledger.Migrate(ctx); err != nil {
		return backends{}, err
	}
	client, advanceTTLs, err := d.openRedis(ctx, options, opened)
	return backends{store: ledger, redis: client, dev: true, advanceTTLs: advanceTTLs}, err
}

// connectBroker creates the embedded MQTT broker and connects the dispatcher to it over the network, as to a separate
// broker.
func (d *DevServer) connectBroker(brokerListener net.Listener, log *slog.Logger, opened *cleanup) error {
	internal := broker.Credentials{User: internalUser, Password: credentials.NewToken()}
	b, err := broker.New(broker.Options{
		Listener: brokerListener, Internal: internal, Logger: log,
		Authenticate: func(ctx context.Context, device devices.ID, password string) error {
			return d.app.dispatcher.AuthenticateSession(ctx, device, password)
		},
		OnRefused: d.app.refuseSession,
	})
	if err != nil {
		return err
	}
	d.broker = b
	opened.add("broker", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), brokerGrace)
		defer cancel()
		return b.Stop(ctx)
	})
	return d.app.attachMQTT(mqtt.Options{URL: d.MQTTURL, User: internal.User, Password: internal.Password})
}

// Run runs the dispatcher until ctx ends. It calls onStarted after everything has been started.
func (d *DevServer) Run(ctx context.Context, onStarted func()) error {
	err := d.broker.Start()
	if err == nil {
		err = d.app.Start(ctx)
	}
	if err == nil {
		notice, failed := d.announceServer()
		if failed != nil { // if the home directory is not writable, the commands need DISPATCHER_URL
			d.log.WarnContext(ctx, "address of this server not stored; commands need DISPATCHER_URL", "err", failed)
		}
		onStarted()
		select {
		case <-ctx.Done():
		case err = <-d.app.Failed():
		case <-d.redisEnded:
			err = errors.New("the private redis-server has ended")
		}
		err = errors.Join(err, notice.Withdraw())
	}
	return errors.Join(err, d.app.Stop(context.WithoutCancel(ctx)))
}

func (d *DevServer) announceServer() (*localdev.Announcement, error) {
	data, err := filepath.Abs(d.Data) // commands may run in other folders
	if err != nil {
		data = d.Data
	}
	return localdev.Announce(localdev.Server{URL: d.URL, MQTTURL: d.MQTTURL, Token: d.AdminToken, FleetToken: d.FleetToken, DataDir: data}, d.announceDirs...)
}

// portsTried is the number of ports that listenOn tries after the requested port.
const portsTried = 50

// listenOn binds an address. If the port is taken and tryNextPorts is true, it binds the next free port.
func listenOn(ctx context.Context, address string, tryNextPorts bool) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil || !tryNextPorts || !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	host, port, splitErr := net.SplitHostPort(address)
	first, lookErr := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if splitErr != nil || lookErr != nil {
		return nil, err
	}
	for p := first + 1; p <= first+portsTried; p++ {
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(p))); err == nil {
			return l, nil
		}
	}
	return nil, err
}

// warnIfReachableFromNetwork logs a warning if other machines can reach address. flagName is the flag that has set the address.
func warnIfReachableFromNetwork(ctx context.Context, log *slog.Logger, flagName string, address net.Addr) {
	if tcp, ok := address.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		log.WarnContext(ctx, "other machines can reach this address, and tokens are sent there without encryption; dev is for trials on one machine", "flag", flagName, "address", address.String())
	}
}

// WriteBanner writes to out a description of this server, and command lines that a user can paste.
func (d *DevServer) WriteBanner(out io.Writer) {
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(d.MQTTURL, "mqtt://"))
	_, _ = fmt.Fprintf(out, `
  dispatcher dev: one process for trying things out (SQLite, %[10]s, embedded MQTT broker).
  Not for production: that is `+"`dispatcher serve`"+` on Postgres, Redis and your broker.

    Dashboard  %[8]s
               signs you in, once; later with the token in the file admin-token

    HTTP  %[1]s        contract: %[1]s/openapi.json
    MQTT  %[2]s
    data  %[3]s (admin-token, fleet-token, ledger.db)

  In another shell, here: %[9]s pools create example --capacity 60; %[9]s --help (docs/tutorial.md has a tutorial)

  One device, by curl:
    curl -s -X POST %[1]s/v1/devices/my-device/report -H 'Authorization: Bearer %[5]s' -d '{"id":"r1"}'

  One device, by MQTT (user name = device id; the client id starts with it):
    mosquitto_sub -h %[6]s -p %[7]s -i my-meter/sub -u my-meter -P '%[5]s' -t fleet/v1/my-meter/reply -C 1 -q 1 &
    sleep 1; mosquitto_pub -h %[6]s -p %[7]s -i my-meter/pub -u my-meter -P '%[5]s' -t fleet/v1/my-meter/report -q 1 -m '{"id":"r1"}'

  A pool with 60 slots, and one batch of tasks for both:
    curl -s -X PUT  %[1]s/v1/pools/example -H 'Authorization: Bearer %[4]s' -H 'Content-Type: application/json' -d '{"capacity":60}'
    curl -s -X POST %[1]s/v1/batches -H 'Authorization: Bearer %[4]s' -H 'Content-Type: application/json' -d '{"pool":"example","kind":"speedtest","devices":["my-device","my-meter"]}'

  The holders of its slots:
    curl -s %[1]s/v1/pools/example/slots -H 'Authorization: Bearer %[4]s'

`, d.URL, d.MQTTURL, d.Data, d.AdminToken, d.FleetToken, host, port, d.SignInURL, d.Program, d.Redis)
}

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/internal/exposition"
	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/throttle"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/operators/web"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Requests in flight are finished within drainGrace, which is longer than the
// handling of any report, and Stop ends within stopGrace. Slots of running
// devices stay held; their leases outlive the process.
const (
	drainGrace = 9 * time.Second
	stopGrace  = 10 * time.Second
)

// backends are the parts in which serve and dev differ. They are closed by App.
type backends struct {
	store    *store.Store
	redis    *redisconn.Conn
	accounts credentials.Accounts // nil: none follow the devices
	dev      bool
	link     string              // secret with which the dashboard is entered once; empty: none
	age      func(time.Duration) // lets the TTLs of an in-process Redis pass, which has no clock for them; nil: it has
}

// App is a dispatcher that is wired and bound. It does nothing before Start.
type App struct {
	config     Config
	log        *slog.Logger
	semaphore  *slots.Semaphore
	dispatcher *dispatcher.Dispatcher
	gate       *gate.Gate
	api        *api.API
	web        *web.Web      // nil: off
	accounts   *provisioning // nil: off
	passes     *passes
	presence   *presence
	cleanup    cleanup
	*front
}

// assemble wires an App. On an error the caller closes what it opened.
func assemble(config Config, log *slog.Logger, version string, b backends, f *front) *App {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(version))
	if b.accounts != nil {
		b.store.NoteAccounts()
	}
	a := &App{config: config, log: log, semaphore: slots.New(b.redis.Client), front: f}
	proxies, _ := config.proxies() // Validate has looked at them
	a.gate = gate.New(gate.Options{Log: log, Ledger: b.store, Proxies: proxies})
	metrics.MustRegister(a.gate)
	seen := seen.NewList(b.redis.Client)
	board := parked.New(b.redis.Client, b.redis.Database)
	a.dispatcher = dispatcher.New(dispatcher.Config{
		Store: b.store, Semaphore: a.semaphore, Limits: policies.LimitsOf(limits.New(b.redis.Client)), Accounts: b.accounts, Recent: seen, Parking: board,
		Waker: a, Marks: marks.NewHashes(b.redis.Client),
		LeaseMargin: config.LeaseMargin, LeaseMin: config.LeaseMin, ReportPeriod: config.ReportPeriod, UrgentShare: config.urgentShare(),
		FleetTokens: config.fleetTokens(), FleetMode: credentials.FleetMode(config.FleetTokenMode),
		Logger: log, Registerer: metrics,
	})
	b.store.OnNews(a.dispatcher.Marks.Wrote)
	throttled := throttle.Log(log, time.Now)
	a.api = api.New(api.Options{
		Dispatcher: a.dispatcher, Store: b.store, Recent: seen, Gate: a.gate, AdminToken: config.AdminToken, LeaseMin: config.LeaseMin,
		LongPollMax: config.LongPollMax, SpoolDir: config.SpoolDir, Checks: a.checks(b), Version: version, Logger: throttled,
		Metrics: exposition.Sources{metrics, newStateMetrics(b.store, log, a.dispatcher.Panicked)},
		Reports: devicehttp.New(devicehttp.Options{Handler: a.dispatcher, Refused: a.gate.RefuseReport, LongPollMax: config.LongPollMax, Logger: throttled}),
	})
	a.presence = newPresence(b.store, version, time.Now())
	a.web = a.newWeb(b, version)
	a.passes = a.newPasses(b)
	a.passes.beside(func(ctx context.Context) { board.Listen(ctx, a.dispatcher.Waiters.Parks, nil) })
	a.passes.beside(a.recall)
	return a
}

// attachMQTT adds the MQTT transport.
func (a *App) attachMQTT(options mqtt.Options) error {
	options.Handler, options.Logger, options.Panicked = a.dispatcher, throttle.Log(a.log, time.Now), a.dispatcher.Panicked
	options.Connected = a.accounts.connectedAgain
	client, err := mqtt.New(options)
	a.mqtt = client
	return err
}

func (a *App) checks(b backends) []api.Check {
	return []api.Check{
		{Name: "postgres", Required: true, Probe: b.store.Ready},
		redisCheck(b.redis, a.dispatcher.Waiters.Pools.Names),
		{Name: "mqtt", Probe: func(context.Context) error {
			if a.mqtt != nil && !a.mqtt.Connected() {
				return errors.New("not connected")
			}
			return nil
		}},
	}
}

// Start lets the dispatcher work: the passes first, so that pools are known to
// Redis before their first report.
func (a *App) Start(ctx context.Context) error {
	a.passes.start() //nolint:contextcheck // passes live until Stop, not as long as ctx
	a.open(a.api, a.web)
	return a.serve(ctx)
}

// Stop ends the dispatcher in the order that loses nothing: not ready, no new
// reports, no waiting, what is in flight, the passes, then the connections. The error names
// what was left when the time was up.
func (a *App) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	a.api.StopReady()
	a.dispatcher.Waiters.Parks.Stop()
	if a.web != nil {
		a.web.Stop()
	}
	err := errors.Join(a.drain(ctx), a.passes.stop(ctx), a.dispatcher.Waiters.Stop(ctx), within(ctx, a.dispatcher.Seen.Flush))
	a.leave(ctx)
	return errors.Join(err, a.cleanup.run(ctx))
}

// run starts the app and stops it when ctx ends.
func (a *App) run(ctx context.Context) error {
	err := a.Start(ctx)
	if err == nil {
		a.log.InfoContext(ctx, "ready", "http", a.Addr(), "redis", states(a.api.Dependencies(ctx))["redis"], "mqtt", a.mqttState())
		select {
		case <-ctx.Done():
			a.log.InfoContext(ctx, "stopping: finishing requests in flight", "grace", stopGrace)
		case err = <-a.Failed():
		}
	}
	return errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
}

// cleanup closes resources in the reverse order of their opening.
type cleanup struct{ steps []cleanupStep }

type cleanupStep struct {
	name  string
	close func() error
}

func (c *cleanup) add(name string, close func() error) {
	c.steps = append(c.steps, cleanupStep{name, close})
}

// run closes everything once; a step that fails or hangs does not keep the rest open.
func (c *cleanup) run(ctx context.Context) error {
	var errs []error
	for _, step := range slices.Backward(c.steps) {
		err := within(ctx, func(context.Context) error { return step.close() })
		if err != nil && !closedBefore(err) {
			errs = append(errs, fmt.Errorf("closing %s: %w", step.name, err))
		}
	}
	c.steps = nil
	return errors.Join(errs...)
}

// closedBefore says whether there was nobody left to say goodbye to: a server
// resets connections when it restarts, and an idle one notices when it is closed.
func closedBefore(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// within runs a step. One that goes on when ctx has ended is left behind: a
// driver that waits for a server that is silent knows no context.
func within(ctx context.Context, step func(context.Context) error) error {
	return rescue.Within(ctx, func() error { return step(ctx) }) //nolint:wrapcheck // the step's own
}

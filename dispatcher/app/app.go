package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/api"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/dispatcher/upkeep"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/dispatcher/web"
	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/throttle"
	"github.com/fleetslots/dispatcher/limits"
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

// ageEvery is how often the keys of an in-process Redis are cleaned up. A late pass
// keeps them longer, which nothing depends on.
const ageEvery = 10 * time.Second

// warmEvery is how often connections that ended are replaced: most live for 20 minutes.
const warmEvery = 15 * time.Second

// backends are the parts in which serve and dev differ. They are closed by App.
type backends struct {
	store    *store.Store
	redis    *redisconn.Conn
	accounts credentials.Accounts // nil: none follow the devices
	dev      bool
	link     string              // secret with which the dashboard is entered once; empty: none
	age      func(time.Duration) // lets the TTLs of an in-process Redis pass, which has no clock for them; nil: it has
}

// listeners are bound before anything starts, so that a taken port fails at
// once. operator may be nil: then device serves operators too.
type listeners struct {
	device, operator net.Listener
}

// front is the listening side: it can answer before there is an App behind it.
type front struct {
	servers  []*server // devices', then operators' if that is another
	starting *api.Starting
	failed   chan error // of the servers
}

func newFront(l listeners, log *slog.Logger) *front {
	f := &front{starting: &api.Starting{}, failed: make(chan error, 2)}
	for _, listener := range []net.Listener{l.device, l.operator} {
		if listener != nil {
			f.servers = append(f.servers, newServer(listener, f.starting, f.failed, log))
		}
	}
	return f
}

func (f *front) start() {
	for _, s := range f.servers {
		s.start()
	}
}

// open lets the API answer, and the dashboard if there is one.
func (f *front) open(a *api.API, dashboard *web.Web) {
	operators := a.Handler()
	if dashboard != nil {
		operators = dashboard.Handler(operators)
	}
	handlers := []http.Handler{operators}
	if len(f.servers) > 1 {
		handlers = []http.Handler{a.DeviceHandler(), operators}
	}
	for i, s := range f.servers {
		s.use(handlers[i])
	}
}

// App is a dispatcher that is wired and bound. It does nothing before Start.
type App struct {
	config     Config
	log        *slog.Logger
	semaphore  *slots.Semaphore
	dispatcher *dispatcher.Dispatcher
	gate       *gate.Gate
	api        *api.API
	web        *web.Web // nil: off
	*front
	board    *parked.Board
	mqtt     *mqtt.Client
	accounts *provisioning // nil: off
	passes   *passes
	reaping  *pass // one of them
	presence *presence
	cleanup  cleanup
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
	a.board = parked.New(b.redis.Client, b.redis.Database)
	a.dispatcher = dispatcher.New(dispatcher.Config{
		Store: b.store, Semaphore: a.semaphore, Limits: limits.New(b.redis.Client), Accounts: b.accounts, Recent: seen, Parking: a.board,
		Waker:       a,
		LeaseMargin: config.LeaseMargin, LeaseMin: config.LeaseMin, ReportPeriod: config.ReportPeriod, Recall: true,
		FleetTokens: config.fleetTokens(), FleetMode: credentials.FleetMode(config.FleetTokenMode),
		Logger: log, Registerer: metrics,
	})
	metrics.MustRegister(newStateCollector(b.store, log, a.dispatcher.Panicked))
	throttled := throttle.Log(log, time.Now)
	a.api = api.New(api.Options{
		Dispatcher: a.dispatcher, Store: b.store, Recent: seen, Gate: a.gate, AdminToken: config.AdminToken, LeaseMin: config.LeaseMin,
		SpoolDir: config.SpoolDir, Checks: a.checks(b), Metrics: metrics, Version: version, Logger: throttled,
		Reports: devicehttp.New(devicehttp.Options{Handler: a.dispatcher, Refused: a.gate.RefuseReport, LongPollMax: config.LongPollMax, Logger: throttled}),
	})
	a.presence = newPresence(b.store, version, time.Now())
	a.web = a.newWeb(b, version)
	a.passes = a.newPasses()
	a.passes.all = append(a.passes.all, &pass{name: "warm", every: warmEvery, limit: time.Minute, run: b.store.Warm, quiet: true})
	a.passes.all = append(a.passes.all, &pass{name: "memory", every: memoryEvery, limit: time.Minute, run: keepMemory, quiet: true})
	a.passes.all = append(a.passes.all, (&redisWatch{conn: b.redis, log: log}).pass())
	if b.age != nil {
		a.passes.all = append(a.passes.all, &pass{name: "age", every: ageEvery, limit: time.Minute, run: func(context.Context) error {
			b.age(ageEvery)
			return nil
		}})
	}
	a.cleanup.add("postgres", b.store.Close)
	a.cleanup.add("redis", b.redis.Close)
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
		{Name: "postgres", Required: true, Probe: b.store.Ping},
		redisCheck(b.redis, a.dispatcher.Waiters.Pools.Names),
		{Name: "mqtt", Probe: func(context.Context) error {
			if a.mqtt != nil && !a.mqtt.Connected() {
				return errors.New("not connected")
			}
			return nil
		}},
	}
}

func (a *App) newPasses() *passes {
	const limit = 30 * time.Second
	a.reaping = &pass{name: "reap", every: a.config.ReapInterval, limit: limit, run: a.reap}
	return newPasses(
		a.log, a.dispatcher.Panicked,
		&pass{name: "follow", every: 400 * time.Millisecond, limit: 5 * time.Second, run: a.follow, quiet: true},
		&pass{name: "hand on", every: 500 * time.Millisecond, limit: 5 * time.Second, run: a.dispatcher.Waiters.FillAll, quiet: true},
		&pass{name: "limits", every: 10 * time.Second, limit: limit, run: a.settleLimits},
		&pass{name: "reconcile", every: a.config.ReconcileInterval, limit: limit, run: a.reconcile},
		a.reaping,
		&pass{name: "retain", every: 10 * time.Minute, limit: limit, run: a.retain},
		&pass{name: "expire", every: 10 * time.Second, limit: limit, run: a.expire},
		&pass{name: "accounts", every: time.Second, limit: limit, run: a.followAccounts},
		&pass{name: "cancel", every: time.Second, limit: limit, run: a.endCancelled},
		&pass{name: "windows", every: 2 * time.Second, limit: limit, run: a.dispatcher.Upkeep.RefreshWindows},
		&pass{name: "fold", every: 2 * time.Second, limit: limit, run: a.fold},
		&pass{name: "recent", every: time.Second, limit: 5 * time.Second, run: a.dispatcher.Seen.FlushRecent, quiet: true},
		&pass{name: "idle", every: time.Second, limit: 5 * time.Second, run: a.dispatcher.Upkeep.CountIdle, quiet: true},
		&pass{name: "dashboard", every: 900 * time.Millisecond, limit: 10 * time.Second, run: a.watch, quiet: true},
		&pass{name: "presence", every: web.SignEvery, limit: 10 * time.Second, run: a.sign, quiet: true},
		&pass{name: "reached", every: time.Second / 2, limit: 5 * time.Second, run: a.dispatcher.Seen.FlushReached, quiet: true},
		&pass{name: "last-seen", every: 10 * time.Second, limit: limit, run: a.dispatcher.Seen.Flush},
	)
}

func (a *App) reap(ctx context.Context) error {
	result, err := a.dispatcher.Upkeep.Reap(ctx)
	if result.Retried+result.Ended > 0 {
		a.log.InfoContext(ctx, "slots of silent devices taken back", "tasks_pending_again", result.Retried, "tasks_ended", result.Ended)
	}
	return err
}

func (a *App) settleLimits(ctx context.Context) error {
	done, err := a.dispatcher.Policies.SettleAll(ctx)
	if done.Doubted > 0 {
		a.log.InfoContext(ctx, "limits are counted anew: something started while they could not be asked", "policies", done.Doubted)
	}
	return err
}

func (a *App) reconcile(ctx context.Context) error {
	return a.reconciled(ctx, a.dispatcher.Upkeep.Reconcile)
}

func (a *App) follow(ctx context.Context) error { return a.reconciled(ctx, a.dispatcher.Upkeep.Follow) }

func (a *App) reconciled(ctx context.Context, pass func(context.Context) (upkeep.ReconcileResult, error)) error {
	result, err := pass(ctx)
	if result.Drift() > 0 {
		a.log.InfoContext(ctx, "slots reconciled", "freed", result.Freed, "added", result.Added, "refused", result.Refused)
	}
	return err
}

func (a *App) retain(ctx context.Context) error {
	keep, err := a.config.retention()
	if err != nil {
		return err
	}
	removed, err := a.dispatcher.Upkeep.Retain(ctx, keep)
	if removed.Most() > 0 {
		a.log.InfoContext(ctx, "old history removed", "events", removed.Events, "attempts", removed.Attempts, "results", removed.Results, "answers", removed.Answers,
			"tasks", removed.Tasks, "batches", removed.Batches)
	}
	return err
}

func (a *App) expire(ctx context.Context) error {
	n, err := a.dispatcher.Upkeep.Expire(ctx)
	if n > 0 {
		a.log.InfoContext(ctx, "tasks expired", "tasks", n)
	}
	return err
}

func (a *App) endCancelled(ctx context.Context) error {
	n, err := a.dispatcher.Upkeep.EndCancelled(ctx)
	if n > 0 {
		a.log.InfoContext(ctx, "tasks of cancelled batches ended", "tasks", n)
	}
	return err
}

// watch updates the open pages of the dashboard.
func (a *App) watch(ctx context.Context) error {
	if a.web == nil {
		return nil
	}
	return a.web.Tick(ctx)
}

func (a *App) fold(ctx context.Context) error {
	aborted, err := a.dispatcher.Upkeep.Fold(ctx)
	if len(aborted) > 0 {
		a.log.WarnContext(ctx, "batches paused by their abort rule", "batches", aborted)
	}
	return err
}

// Start lets the dispatcher work: the passes first, so that pools are known to
// Redis before their first report.
func (a *App) Start(ctx context.Context) error {
	a.passes.start() //nolint:contextcheck // passes live until Stop, not as long as ctx
	a.passes.beside(func(ctx context.Context) { a.board.Listen(ctx, a.dispatcher.Waiters.Parks, nil) })
	a.passes.beside(a.reapOnTime)
	a.passes.beside(a.recall)
	a.open(a.api, a.web)
	a.start()
	if a.mqtt != nil {
		if err := a.mqtt.Start(ctx); err != nil {
			return fmt.Errorf("starting MQTT: %w", err)
		}
	}
	return nil
}

// Failed tells of a listener that ended by itself.
func (a *App) Failed() <-chan error { return a.failed }

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
	err := errors.Join(a.stopTransports(ctx), a.passes.stop(ctx), a.dispatcher.Waiters.Stop(ctx), within(ctx, a.dispatcher.Seen.Flush))
	a.leave(ctx)
	return errors.Join(err, a.cleanup.run(ctx))
}

// stopTransports finishes all at once: one that hangs takes no time from the
// others.
func (a *App) stopTransports(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainGrace)
	defer cancel()
	stops := make([]func(context.Context) error, 0, len(a.servers)+1)
	for _, s := range a.servers {
		stops = append(stops, s.stop)
	}
	if a.mqtt != nil {
		stops = append(stops, a.mqtt.Stop)
	}
	ends := make([]<-chan error, len(stops))
	for i, stop := range stops {
		ends[i] = rescue.Async(func() error { return stop(ctx) })
	}
	var failed error
	for _, end := range ends {
		failed = errors.Join(failed, <-end)
	}
	return failed
}

// Addr is where devices report over HTTP.
func (a *App) Addr() string { return a.servers[0].listener.Addr().String() }

// mqttState is off, connecting or connected. A broker that refuses is said by the client.
func (a *App) mqttState() string {
	switch {
	case a.mqtt == nil:
		return "off"
	case a.mqtt.Connected():
		return "connected"
	}
	return "connecting"
}

// run starts the app and stops it when ctx ends.
func (a *App) run(ctx context.Context) error {
	err := a.Start(ctx)
	if err == nil {
		a.log.InfoContext(ctx, "ready", "http", a.Addr(), "redis", a.api.Dependencies(ctx)["redis"], "mqtt", a.mqttState())
		select {
		case <-ctx.Done():
			a.log.InfoContext(ctx, "stopping: finishing requests in flight", "grace", stopGrace)
		case err = <-a.Failed():
		}
	}
	return errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
}

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
	"github.com/fleetslots/dispatcher/internal/pace"
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

// Time limits of Stop: drainGrace limits the wait for requests in flight, and stopGrace limits all steps together. drainGrace is
// longer than handleLimit of package dispatcher, because a report in flight may take that long. stopGrace must be below TimeoutStopSec in
// deploy/systemd and stop_grace_period in docker-compose.yml.
const (
	drainGrace = 9 * time.Second
	stopGrace  = 10 * time.Second
)

// backends are the servers and options that differ between serve and dev. App closes them.
type backends struct {
	store       *store.Store
	redis       *redisconn.Conn
	accounts    credentials.Accounts // nil if the dispatcher manages no accounts of devices
	dev         bool
	signInLink  string              // secret of the link that signs in to the dashboard once; empty without a link
	advanceTTLs func(time.Duration) // advances the clock for the TTLs of an in-process Redis, which has no own clock; nil for a real Redis
}

// App is a dispatcher whose parts are connected and whose listeners are bound. It does nothing before Start.
type App struct {
	config     Config
	log        *slog.Logger
	semaphore  *slots.Semaphore
	dispatcher *dispatcher.Dispatcher
	gate       *gate.Gate
	pace       *pace.Limiter // nil if the reports of a device are not limited
	api        *api.API
	web        *web.Web             // nil if the dashboard is off
	accounts   *accountProvisioning // nil if provisioning is off
	passes     *passes
	presence   *replicaPresence
	cleanup    cleanup
	*transports
}

// assembleApp creates an App and connects its parts. If a later step fails, the caller must close servers and connections.
func assembleApp(config Config, log *slog.Logger, version string, servers backends, connections *transports) *App {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newBuildInfoMetric(version))
	if servers.accounts != nil {
		servers.store.RecordAccountChanges()
	}
	a := &App{config: config, log: log, semaphore: slots.New(servers.redis.Client), transports: connections}
	proxies, _ := config.trustedNetworks() // Validate has checked them
	a.gate = gate.New(gate.Options{Log: log, Ledger: servers.store, Proxies: proxies})
	a.pace = pace.New(parseReportLimit(config.ReportRate, config.ReportBurst))
	metrics.MustRegister(a.gate, newNoisyDeviceGauge(a.pace))
	seen := seen.NewList(servers.redis.Client)
	board := parked.New(servers.redis.Client, servers.redis.Database)
	a.dispatcher = dispatcher.New(dispatcher.Config{
		Store: servers.store, Semaphore: a.semaphore, Limits: policies.NewLimits(limits.New(servers.redis.Client)), Accounts: servers.accounts, Recent: seen, Parking: board,
		Waker: a, Marks: marks.NewHashes(servers.redis.Client),
		LeaseMargin: config.LeaseMargin, LeaseMin: config.LeaseMin, ReportPeriod: config.ReportPeriod, UrgentShare: config.urgentSharePercent(),
		FleetTokens: config.fleetTokens(), FleetMode: credentials.FleetMode(config.FleetTokenMode), RegistrationRate: parseReportLimit(config.RegistrationRate, config.RegistrationBurst), BlockNewDevices: config.RegistrationApproval == settingOn,
		Logger: log, Registerer: metrics,
	})
	servers.store.OnNews(a.dispatcher.Marks.FollowCommit)
	throttled := throttle.NewLogger(log, time.Now)
	reports := devicehttp.New(devicehttp.Options{Handler: a.dispatcher, Pace: a.pace, Authenticate: a.authenticateReport, OnRefused: a.gate.CountReportRefusal, AddressOf: a.gate.ClientAddress, LongPollMax: config.LongPollMax, Logger: throttled})
	a.api = api.New(api.Options{
		Dispatcher: a.dispatcher, Store: servers.store, Recent: seen, Gate: a.gate, AdminToken: config.AdminToken, LeaseMin: config.LeaseMin,
		LongPollMax: config.LongPollMax, SpoolDir: config.SpoolDir, Checks: a.dependencyChecks(servers), Version: version, Logger: throttled,
		Metrics: exposition.Sources{metrics, newStateMetrics(servers.store, log, a.dispatcher.Panicked)}, MetricsToken: config.MetricsToken,
		Reports: reports, Hawkbit: a.newHawkbit(reports.Intake, servers.store, metrics), PublicURL: config.PublicURL,
	})
	a.presence = newReplicaPresence(servers.store, version, time.Now())
	a.web = a.newWeb(servers, version)
	a.passes = a.newPasses(servers)
	a.passes.addBackground(func(ctx context.Context) { board.Listen(ctx, a.dispatcher.Waiters.ParkedReports, nil) })
	return a
}

func (a *App) attachMQTT(options mqtt.Options) error {
	options.Handler, options.Pace, options.Logger, options.Panicked = a.dispatcher, a.pace, throttle.NewLogger(a.log, time.Now), a.dispatcher.Panicked
	options.OnConnected = a.accounts.requireRightsCheck
	client, err := mqtt.New(options)
	a.mqtt = client
	return err
}

// dependencyChecks returns the checks of Postgres, Redis and the MQTT broker for readiness.
func (a *App) dependencyChecks(servers backends) []api.Check {
	postgres, redis, broker := a.config.serverAddresses()
	return []api.Check{
		{Name: "postgres", Required: true, Address: postgres, Probe: servers.store.Ready},
		newRedisCheck(servers.redis, redis, a.dispatcher.Waiters.Pools.Names),
		{Name: "mqtt", Address: broker, Probe: func(context.Context) error {
			if a.mqtt == nil {
				return api.ErrOff
			}
			return a.mqtt.Check()
		}},
	}
}

// Start starts the dispatcher. It starts the passes first, so that Redis knows the pools before the first report arrives.
func (a *App) Start(ctx context.Context) error {
	a.passes.start() //nolint:contextcheck // passes live until Stop, not as long as ctx
	a.useHandlers(a.api, a.web)
	return a.startAll(ctx)
}

// Stop ends the dispatcher without losing requests. It first fails the readiness check, and ends the waits of parked reports and the live
// streams, so that their requests end soon. Then it closes the listeners, finishes the requests, stops the passes, and closes the
// connections. If ctx or stopGrace ends before that, the error names the parts that are still running.
func (a *App) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	a.api.FailReadiness()
	a.dispatcher.Waiters.ParkedReports.Stop()
	if a.web != nil {
		a.web.Stop()
	}
	err := errors.Join(a.drain(ctx), a.passes.stop(ctx), a.dispatcher.Waiters.Stop(ctx), runWithin(ctx, a.dispatcher.Seen.Flush))
	a.removePresence(ctx)
	return errors.Join(err, a.cleanup.closeAll(ctx))
}

func (a *App) run(ctx context.Context) error {
	err := a.Start(ctx)
	if err == nil {
		a.log.InfoContext(ctx, "ready", "http", a.Addr(), "redis", dependencyStates(a.api.Dependencies(ctx))["redis"], "mqtt", a.mqttState())
		select {
		case <-ctx.Done():
			a.log.InfoContext(ctx, "stopping: finishing requests in flight", "grace", stopGrace)
		case err = <-a.Failed():
		}
	}
	return errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
}

// cleanup closes resources in the reverse order in which they were opened.
type cleanup struct{ steps []cleanupStep }

type cleanupStep struct {
	name  string
	close func() error
}

func (c *cleanup) add(name string, closeResource func() error) {
	c.steps = append(c.steps, cleanupStep{name, closeResource})
}

// closeAll closes all resources once. A step that fails or hangs does not prevent the other steps.
func (c *cleanup) closeAll(ctx context.Context) error {
	var errs []error
	for _, step := range slices.Backward(c.steps) {
		err := runWithin(ctx, func(context.Context) error { return step.close() })
		if err != nil && !isAlreadyClosed(err) {
			errs = append(errs, fmt.Errorf("closing %s: %w", step.name, err))
		}
	}
	c.steps = nil
	return errors.Join(errs...)
}

// isAlreadyClosed reports whether err means that the server had already closed the connection, for example because the
// server restarted.
func isAlreadyClosed(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// runWithin runs step and returns at the latest when ctx ends. A database driver ignores contexts while it waits for a
// server that does not answer.
func runWithin(ctx context.Context, step func(context.Context) error) error {
	return rescue.CallWithin(ctx, func() error { return step(ctx) }) //nolint:wrapcheck // the error of the step needs no addition
}

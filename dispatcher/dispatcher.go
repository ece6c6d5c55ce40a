package dispatcher

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	mathrand "math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/dispatcher/upkeep"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/throttle"
	"github.com/fleetslots/dispatcher/store"
)

// Config sets up a Dispatcher. Zero durations mean the default.
type Config struct {
	Store     Store
	Semaphore Semaphore
	Limits    *policies.Limits     // nil: what has policies does not start
	Accounts  credentials.Accounts // at the broker; nil: none follow the devices
	Recent    seen.Recent          // nil: nobody is told who was seen last
	Waker     waiters.Waker        // nil: no device can be pushed to
	Marks     marks.Cache          // of the devices with work; nil: each report is looked up in the ledger
	Parking   waiters.Parking      // nil: no other replica parks reports

	LeaseMargin  time.Duration // kept back from every lease, at most a fifth of it; 0 keeps nothing back
	LeaseMin     time.Duration // no device is given less; default 1 s
	ReportPeriod time.Duration // report_after_ms of an idle device; default 30 s

	Offer time.Duration // a slot stays reserved so long for the device that it is offered to; default 3 s

	UrgentShare int // percent of a pool's capacity, rounded up, for which urgent batches go before all others: 1 to 100; default 10

	FleetTokens []string              // none, one or two (rotation)
	FleetMode   credentials.FleetMode // what a fleet token may do; default FleetAny

	MaxParked int // reports that wait for an answer at once (long poll); beyond it they are answered; default 20,000

	Logger     *slog.Logger          // default: discards
	Registerer prometheus.Registerer // default: metrics are kept and not shown

	Now    func() time.Time // for elapsed time only; default time.Now
	Jitter func() float64   // in [0,1); default random
}

// Dispatcher answers reports, and has the rooms that stand beside that. It is safe for
// concurrent use and starts nothing but what Waiters does beside its callers.
type Dispatcher struct {
	Waiters  *waiters.Notifier     // who is told of free slots
	Policies *policies.Checker     // how often tasks may start
	Devices  *credentials.Registry // who may act for a device
	Seen     *seen.Devices         // when devices reported
	Upkeep   *upkeep.Keeper        // the passes
	Marks    *marks.Follower       // which devices have work; nil: nobody notes it

	Explainer *Explainer // why tasks wait

	config   Config
	log      *slog.Logger
	metrics  *metrics
	idlers   *idlers
	away     struct{ ledger, semaphore outage }
	together together
}

// New builds a Dispatcher.
func New(config Config) *Dispatcher {
	config = config.withDefaults()
	set := meters.New(config.Registerer)
	d := &Dispatcher{config: config, log: throttle.Log(config.Logger, config.Now), metrics: newMetrics(set)}
	d.together = newTogether(config.Store, d.settle, config.Now, d.Panicked)
	d.Seen = seen.NewDevices(config.Store, config.Recent, config.Now)
	d.Devices = credentials.New(credentials.Config{
		Ledger: config.Store, Look: d.look, Accounts: config.Accounts,
		FleetTokens: config.FleetTokens, FleetMode: config.FleetMode, Logger: d.log, Panicked: d.Panicked, Now: config.Now,
	})
	if config.Marks != nil {
		d.Marks = marks.New(marks.Config{
			Ledger: config.Store, Cache: config.Marks, Told: d.Devices.Doubt, Now: config.Now, Panicked: d.Panicked,
		})
	}
	d.idlers = &idlers{
		marks: d.Marks, devices: d.Devices, read: d.look, outage: &d.away.ledger, metrics: d.metrics, log: d.log, now: config.Now,
	}
	d.Policies = policies.New(policies.Config{
		Ledger: config.Store, Limits: config.Limits, Meters: set, Logger: d.log, Panicked: d.Panicked, Now: config.Now,
	})
	d.Waiters = waiters.New(waiters.Config{
		Ledger: config.Store, Semaphore: config.Semaphore, Policies: d.Policies, Parking: config.Parking, Waker: config.Waker,
		ReportPeriod: config.ReportPeriod, Offer: config.Offer, UrgentShare: config.UrgentShare, MaxParked: config.MaxParked,
		Unreachable: func(v store.View) { d.Seen.MarkReach(v.Device.ID, store.Seen{At: v.Now, Reach: store.ReachNone}) },
		Meters:      set, Logger: d.log, Debug: config.Logger, Panicked: d.Panicked, Now: config.Now,
	})
	d.Explainer = &Explainer{
		ledger: config.Store, semaphore: config.Semaphore, views: d.together.views, policies: d.Policies, pools: d.Waiters.Pools, seen: d.Seen,
		marks: d.Marks, period: config.ReportPeriod, urgentShare: config.UrgentShare, log: d.log, panicked: d.Panicked,
	}
	d.Upkeep = upkeep.New(upkeep.Config{
		Ledger: config.Store, Semaphore: config.Semaphore, Waiters: d.Waiters, Settle: d.settle, ReportPeriod: config.ReportPeriod,
		Meters: set, Logger: d.log, Panicked: d.Panicked, Now: config.Now,
	})
	return d
}

func (c Config) withDefaults() Config {
	c.LeaseMin = cmp.Or(c.LeaseMin, time.Second)
	c.ReportPeriod = cmp.Or(c.ReportPeriod, 30*time.Second)
	c.Offer = cmp.Or(c.Offer, 3*time.Second)
	c.UrgentShare = cmp.Or(c.UrgentShare, 10)
	c.FleetMode = cmp.Or(c.FleetMode, credentials.FleetAny)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now //nolint:forbidigo // the default of the injected clock
	}
	if c.Jitter == nil {
		c.Jitter = mathrand.Float64
	}
	return c
}

// Authenticate is that of the registry.
func (d *Dispatcher) Authenticate(ctx context.Context, device devices.ID, token string) (devices.Caller, error) {
	return d.Devices.Authenticate(ctx, device, token) //nolint:wrapcheck // the registry's own
}

// AuthenticateSession is that of the registry.
func (d *Dispatcher) AuthenticateSession(ctx context.Context, device devices.ID, token string) error {
	return d.Devices.AuthenticateSession(ctx, device, token) //nolint:wrapcheck // the registry's own
}

// Tallies are what this process has counted of each pool.
func (d *Dispatcher) Tallies() map[string]meters.Tally { return d.metrics.set.Tallies() }

// Panicked logs and counts what one goroutine of this process panicked with: it ended
// nothing but what it was doing.
func (d *Dispatcher) Panicked(doing string, p *rescue.Panic) {
	d.metrics.panics.Inc()
	d.log.Error("panicked", "doing", doing, "panic", p.Cause, "stack", string(p.Stack))
}

// nonce makes lease ids of different reports different.
func nonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

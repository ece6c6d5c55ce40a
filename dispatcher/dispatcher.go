package dispatcher

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	mathrand "math/rand/v2"
	"sync/atomic"
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
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/throttle"
	"github.com/fleetslots/dispatcher/store"
)

// Config configures a Dispatcher. A field that is 0 or empty has its default value, if its comment names one. The command serve sets LeaseMin,
// ReportPeriod, UrgentShare and FleetMode from its settings, whose defaults are in settings.go of package app.
type Config struct {
	Store     Store
	Semaphore Semaphore
	Limits    *policies.Limits     // if nil, tasks with policies do not start
	Accounts  credentials.Accounts // device accounts at the broker; if nil, no accounts are updated
	Recent    seen.Recent          // list of the devices that reported last; if nil, no list is written
	Waker     waiters.Waker        // if nil, no device is reached by push
	Marks     marks.Cache          // marks of the devices with work; if nil, each report is looked up in the ledger
	Parking   waiters.Parking      // messages between replicas about parked reports; if nil, no other replica parks reports

	LeaseMargin  time.Duration // subtracted from every lease, at most a fifth of the lease; 0 subtracts nothing
	LeaseMin     time.Duration // minimum usable time of a grant; default 1 s
	ReportPeriod time.Duration // report_after_ms of an idle device; default 30 s

	Offer time.Duration // time for which an offered slot stays reserved for its device; default 3 s

	UrgentShare int // percent (1 to 100) of a pool's slots, rounded up, for which urgent batches go before all other batches; default 10

	FleetTokens []string              // no token, one token, or two tokens during a rotation
	FleetMode   credentials.FleetMode // what a fleet token may do; default FleetAny

	RegistrationRate pace.Options // limits the registration of unknown devices; the zero value means that there is no limit
	BlockNewDevices  bool         // unknown devices that register themselves are blocked until an operator unblocks them

	MaxParked int // maximum number of parked reports (long poll); all other reports are answered at once; default 20,000, which package waiters sets

	Logger     *slog.Logger          // by default, logs are discarded
	Registerer prometheus.Registerer // by default, metrics are counted and not exported

	Now    func() time.Time // for elapsed time only; default time.Now
	Jitter func() float64   // returns a number in [0,1); random by default
}

// Dispatcher answers reports. Each exported field is a part of it that keeps its own state. Dispatcher is safe for concurrent use.
// Waiters also works between calls, until Waiters.Stop.
type Dispatcher struct {
	Waiters  *waiters.Notifier     // notifies devices of free slots
	Policies *policies.Checker     // checks how often tasks may start
	Devices  *credentials.Registry // checks who may act for a device
	Seen     *seen.Devices         // collects the times of reports until they are written to the ledger; omits some reports of devices that only poll
	Upkeep   *upkeep.Keeper        // background passes
	Marks    *marks.Follower       // marks the devices that have work; nil if devices have no marks

	Explainer *Explainer // explains why tasks wait

	config      Config
	log         *slog.Logger
	metrics     *metrics
	outages     struct{ ledger, semaphore outage }
	ledgerCalls ledgerCalls

	lookups   atomic.Int64 // number of concurrent lookups of devices without a mark; maxLookups limits it
	auditable atomic.Int64 // number of reports that were answered from a mark or audited
}

// New returns a Dispatcher with this configuration.
func New(config Config) *Dispatcher {
	config = config.withDefaults()
	set := meters.New(config.Registerer)
	d := &Dispatcher{config: config, log: throttle.NewLogger(config.Logger, config.Now), metrics: newMetrics(set)}
	d.ledgerCalls = newLedgerCalls(config.Store, d.decideTaskState, d.endWaits, config.Now, d.Panicked)
	d.Seen = seen.NewDevices(config.Store, config.Recent, config.Now)
	d.Devices = credentials.New(credentials.Config{
		Ledger: config.Store, ReadView: d.readFullView, Accounts: config.Accounts,
		FleetTokens: config.FleetTokens, FleetMode: config.FleetMode, Rate: config.RegistrationRate, BlockNew: config.BlockNewDevices, Meters: set, Logger: d.log, Panicked: d.Panicked, Now: config.Now,
	})
	if config.Marks != nil {
		d.Marks = marks.New(marks.Config{
			Ledger: config.Store, Cache: config.Marks, OnNews: d.Devices.ForgetAdmission, Now: config.Now, Panicked: d.Panicked,
		})
	}
	d.Policies = policies.New(policies.Config{
		Ledger: config.Store, Limits: config.Limits, Meters: set, Logger: d.log, Panicked: d.Panicked, Now: config.Now,
	})
	d.Waiters = waiters.New(waiters.Config{
		Ledger: config.Store, Semaphore: config.Semaphore, Policies: d.Policies, Parking: config.Parking, Waker: config.Waker,
		ReportPeriod: config.ReportPeriod, Offer: config.Offer, UrgentShare: config.UrgentShare, MaxParked: config.MaxParked,
		Unreachable: func(v store.DeviceView) {
			d.Seen.RecordReach(v.Device.ID, store.LastReport{At: v.Now, Reach: store.ReachNone})
		},
		Meters: set, Logger: d.log, Debug: config.Logger, Panicked: d.Panicked, Now: config.Now,
	})
	d.Explainer = &Explainer{
		ledger: config.Store, semaphore: config.Semaphore, views: d.ledgerCalls.views, policies: d.Policies, pools: d.Waiters.Pools, seen: d.Seen,
		marks: d.Marks, period: config.ReportPeriod, urgentShare: config.UrgentShare, log: d.log, panicked: d.Panicked,
	}
	d.Upkeep = upkeep.New(upkeep.Config{
		Ledger: config.Store, Semaphore: config.Semaphore, Waiters: d.Waiters, DecideTaskState: d.decideTaskState, ReportPeriod: config.ReportPeriod,
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

// Authenticate returns the sender of a report that names device. It returns the errors of credentials.Registry.Authenticate.
func (d *Dispatcher) Authenticate(ctx context.Context, device devices.ID, token string) (devices.Caller, error) {
	return d.Devices.Authenticate(ctx, device, token)
}

// AuthenticateSession returns nil if device may open a session at a broker with token. It returns the errors of
// credentials.Registry.AuthenticateSession.
func (d *Dispatcher) AuthenticateSession(ctx context.Context, device devices.ID, token string) error {
	return d.Devices.AuthenticateSession(ctx, device, token)
}

// Tallies returns what this process has counted for each pool: denials, conflicts and drift.
func (d *Dispatcher) Tallies() (byPool map[string]meters.Tally) { return d.metrics.set.Tallies() }

// Panicked logs and counts a recovered panic. activity names the work that panicked. The process continues.
func (d *Dispatcher) Panicked(activity string, recovered *rescue.Panic) {
	d.metrics.panics.Inc()
	d.log.Error("panicked", "doing", activity, "panic", recovered.Cause, "stack", string(recovered.Stack))
}

// newNonce returns a random text that makes the lease ids of different reports different.
func newNonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

package dispatcher

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/parked"
	"github.com/fleetslots/dispatcher/store"
)

var (
	// ErrUnavailable: nothing could be recorded or acknowledged.
	ErrUnavailable = devices.ErrUnavailable
	// ErrForbidden: the caller may not act for this device.
	ErrForbidden = devices.ErrForbidden
	// ErrUnauthenticated: no credential, or one that is not known.
	ErrUnauthenticated = devices.ErrUnauthenticated
	// ErrBroker: the broker could not be told of a device's new secret. Nothing
	// was changed; the same may be asked for again.
	ErrBroker = errors.New("the MQTT broker cannot be told")
	// ErrAccounts: the broker keeps an account for each device, and is told of
	// one at a time.
	ErrAccounts = errors.New("the MQTT broker is told of one device at a time")
)

// Config sets up a Dispatcher. Zero durations mean the default.
type Config struct {
	Store     Store
	Semaphore Semaphore
	Limits    Limits   // nil: what has policies does not start
	Accounts  Accounts // at the broker; nil: none follow the devices
	Recent    Recent   // nil: nobody is told who was seen last
	Waker     Waker    // nil: no device can be pushed to
	Parking   Parking  // nil: no other replica parks reports

	LeaseMargin  time.Duration // kept back from every lease, at most a fifth of it; 0 keeps nothing back
	LeaseMin     time.Duration // no device is given less; default 1 s
	ReportPeriod time.Duration // report_after_ms of an idle device; default 30 s

	// Recall repeats a refusal from memory, for a moment, to who asks again at once:
	// then a storm of such reports asks neither the ledger nor the semaphore.
	Recall bool

	Offer time.Duration // a slot stays reserved so long for the device that it is offered to; default 3 s

	FleetTokens []string  // none, one or two (rotation)
	FleetMode   FleetMode // what a fleet token may do; default FleetAny

	MaxParked int // reports that wait for an answer at once (long poll); beyond it they are answered; default 20,000

	Logger     *slog.Logger          // default: discards
	Registerer prometheus.Registerer // default: metrics are kept and not shown

	Now    func() time.Time // for elapsed time only; default time.Now
	Jitter func() float64   // in [0,1); default random
}

// Dispatcher decides. It is safe for concurrent use and starts nothing.
type Dispatcher struct {
	store         Store
	semaphore     Semaphore
	accounts      *accounts
	config        Config
	log           *slog.Logger
	panicked      rescue.Told
	metrics       *metrics
	holds         *holdTimes
	refusals      *refusals
	rules         *ruleBook
	uncounted     *uncounted
	ledgerAway    outage
	semaphoreAway outage
	limitedPools  limitedPools
	idle          *idleLooks
	seen          *lastSeen // for the ledger
	reached       *lastSeen // of seen, those of which the ledger does not know how they can be told
	fresh         *lastSeen // for Config.Recent
	guard         *clockGuard
	doubted       atomic.Bool // it was said that the ledger's clock is
	known         *knownTokens
	restoring     singleflight.Group // by pool
	filling       sync.Map           // what of restoring fills limits -> since when
	following     *following
	parks         *parks
	errands       *errands
	tellings      *turns[telling]
	lookings      *turns[looking]
	gone          *turns[[]parked.Report]
	lines         *poolLines
	searches      *searches
	views         *convoys[string, store.View]
	claiming      *convoys[acquired, claimed] // by pool: one that is locked holds up no other
	now           func() time.Time
	jitter        func() float64
}

// New builds a Dispatcher.
func New(config Config) *Dispatcher {
	config.LeaseMin = cmp.Or(config.LeaseMin, time.Second)
	config.ReportPeriod = cmp.Or(config.ReportPeriod, 30*time.Second)
	config.Offer = cmp.Or(config.Offer, 3*time.Second)
	config.FleetMode = cmp.Or(config.FleetMode, FleetAny)
	config.MaxParked = cmp.Or(config.MaxParked, maxParked)
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Now == nil {
		config.Now = time.Now //nolint:forbidigo // the default of the injected clock
	}
	if config.Jitter == nil {
		config.Jitter = mathrand.Float64
	}
	parks := newParks(config.MaxParked, config.Now)
	parks.show(config.Registerer)
	d := &Dispatcher{
		store:     config.Store,
		semaphore: config.Semaphore,
		accounts:  newAccounts(config.Accounts),
		config:    config,
		log:       Sparing(config.Logger, config.Now),
		metrics:   newMetrics(config.Registerer),
		holds:     newHoldTimes(),
		refusals:  newRefusals(),
		rules:     newRuleBook(),
		idle:      &idleLooks{},
		seen:      newLastSeen(),
		reached:   newLastSeen(),
		fresh:     newLastSeen(),
		guard:     &clockGuard{},
		uncounted: newUncounted(),
		known:     newKnownTokens(config.Now),
		following: newFollowing(),
		parks:     parks,
		tellings:  newTurns(telling.and),
		lookings:  newTurns(looking.and),
		gone:      newTurns(together[parked.Report]),
		lines:     newPoolLines(),
		searches:  newSearches(),
		now:       config.Now,
		jitter:    config.Jitter,
	}
	d.panicked = d.Panicked
	d.errands = newErrands(d.panicked)
	d.views, d.claiming = newViewing(config.Store, d.panicked), newClaiming(config.Store, config.Now, d.panicked)
	return d
}

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

package waiters

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Ledger reads devices and tasks. *store.Store implements it.
type Ledger interface {
	DeviceViews(ctx context.Context, devices []string) ([]store.DeviceView, error)
	PoolsWithWork(ctx context.Context, pools []string) ([]string, error)
	PoolsWithUrgent(ctx context.Context, pools []string) ([]string, error)
	OpenBatches(ctx context.Context, pool string, afterBatch int64, limit int) ([]store.OpenBatch, error)
	UrgentBatches(ctx context.Context, pool string, limit int) ([]store.OpenBatch, error)
	NextCallers(ctx context.Context, pool string, limit int) ([]string, error)
	ReachableDevices(ctx context.Context, search store.ReachableSearch) (store.ReachablePage, error)
}

// Semaphore keeps the slots and the queues of the pools. *slots.Semaphore implements it.
type Semaphore interface {
	Serve(ctx context.Context, calls []slots.Call) []slots.ExchangeResult
	Refresh(ctx context.Context, pool string, pace slots.Pace, refreshes []slots.WaiterRefresh) ([]time.Duration, error)
	Node(ctx context.Context, pool string) string
	OfferSlots(ctx context.Context, pool string, pace slots.Pace, updates []slots.Update) (slots.QueueState, error)
	Join(ctx context.Context, pool string, pace slots.Pace, joiners []slots.Joiner) (slots.QueueState, error)
	FindWaitingPools(ctx context.Context, pools []string) (waiting, needOffers []string, err error)
	PoolsWithOffer(ctx context.Context, pools []string, device string) ([]string, error)
}

// Policies limit how often tasks may start.
type Policies interface {
	// HasPolicies reports whether the latest pass found policies that concern the pool.
	HasPolicies(pool string) bool
	// LimitedTasks returns, by task id, the obstacle of each task in the pool that its policies refuse now.
	LimitedTasks(ctx context.Context, pool string, views []store.DeviceView) map[int64]decision.Obstacle
}

// Parking exchanges messages about parked reports between replicas. *parked.Board implements it.
type Parking interface {
	RegisterNewestReport(ctx context.Context, device string, numberTTL time.Duration) (number int64, previousJustEnded bool, err error)
	RecordClosedConnections(ctx context.Context, reports []parked.Report) (gone []parked.Report, err error)
	Wake(ctx context.Context, calls []parked.WakeMessage) error
}

// Waker notifies devices by push. *mqtt.Client implements it.
type Waker interface {
	// Wake asks a device to report now, because a slot is reserved for it for the duration hold. If hold is 0, there is another reason. Wake
	// never blocks, and its message may be lost.
	Wake(device devices.ID, hold time.Duration)
}

// Config configures a Notifier.
type Config struct {
	Ledger    Ledger
	Semaphore Semaphore
	Policies  Policies
	Parking   Parking // if nil, no other replica parks reports
	Waker     Waker   // if nil, no device is reached by push

	ReportPeriod time.Duration
	Offer        time.Duration // time for which an offered slot stays reserved for its device
	UrgentShare  int           // percent of a pool for which urgent batches go before all other batches
	MaxParked    int           // maximum number of parked reports; default 20,000

	Unreachable func(view store.DeviceView) // is called when a device can no longer be notified

	Meters   *meters.Set
	Logger   *slog.Logger
	Debug    *slog.Logger // for the steps of each handoff
	Panicked rescue.PanicHandler
	Now      func() time.Time // for elapsed time only
}

// Notifier offers free slots to waiting devices. It is safe for concurrent use. It starts work in the background only when one of its methods
// is called, and none after Stop.
type Notifier struct {
	Pools         *Pools
	ParkedReports *ParkedReports
	Relay         *Relay
	Handoffs      *Handoffs
	Offers        *Offers
	Slots         *Slots
	Filler        *Filler
	Departures    *Departures

	background *background
}

// New returns a Notifier with this configuration.
func New(config Config) *Notifier {
	pools := newPools(slots.Pace{MinWait: decision.MinReportDelay, ReportPeriod: config.ReportPeriod, OfferTTL: config.Offer})
	localReports := newParkedReports(cmp.Or(config.MaxParked, maxParked), config.Now)
	config.Meters.GaugeFunc("reports_parked", "Reports whose answer waits for a task (long poll).", localReports.parkedReportCount)
	background, log := &background{ctx: context.Background(), crew: rescue.ReportingGroup{OnPanic: config.Panicked}}, config.Logger
	relay := &Relay{localReports: localReports, board: config.Parking, ledger: config.Ledger, background: background, log: log}
	forecast, handoffs := &forecast{ledger: config.Ledger, policies: config.Policies}, newHandoffs(config.Meters, config.Debug)
	offers := &Offers{pools: pools, relay: relay, forecast: forecast, handoffs: handoffs, semaphore: config.Semaphore, waker: config.Waker, now: config.Now}
	offers.rounds = &mergedWork[offerRound]{
		background: background, log: log, merge: offerRound.add, runWork: offers.runRounds,
		doing: "handing off slots", warning: "slots are handed off by the next pass",
	}
	sleepers := &sleepingDeviceFinder{pools: pools, forecast: forecast, ledger: config.Ledger, seenWithin: missedReports*config.ReportPeriod + seenSlack, urgentShare: config.UrgentShare, now: config.Now}
	filler := &Filler{pools: pools, localReports: localReports, offers: offers, sleepers: sleepers, ledger: config.Ledger, semaphore: config.Semaphore}
	filler.requests = &mergedWork[fillRequest]{
		background: background, log: log, merge: fillRequest.add, runWork: filler.offerFreeSlots,
		doing: "handing off slots", warning: "free slots are offered by the next pass",
	}
	departures := &Departures{localReports: localReports, relay: relay, offers: offers, ledger: config.Ledger, unreachable: config.Unreachable}
	merge := func(earlier, more []parked.Report) []parked.Report { return append(earlier, more...) }
	departures.reports = &mergedWork[[]parked.Report]{
		background: background, log: log, merge: merge, runWork: departures.stopOffersInParts,
		doing: "releasing devices that left", warning: "devices that left are skipped when they miss their offers",
	}
	return &Notifier{
		Pools: pools, ParkedReports: localReports, Relay: relay, Handoffs: handoffs, Offers: offers, Slots: newSlots(config, pools, offers),
		Filler: filler, Departures: departures, background: background,
	}
}

// Stop prevents new work in the background, and waits until the work in progress has ended or ctx ends. The other replicas do the rest.
func (n *Notifier) Stop(ctx context.Context) error {
	if err := n.background.stop(ctx); err != nil {
		return fmt.Errorf("handing off slots: %w", err)
	}
	return nil
}

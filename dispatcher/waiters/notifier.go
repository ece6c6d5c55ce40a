package waiters

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Ledger is what is read of devices and tasks; *store.Store.
type Ledger interface {
	Views(ctx context.Context, devices []string) ([]store.View, error)
	PoolsWithWork(ctx context.Context, pools []string) ([]string, error)
	PoolsWithUrgent(ctx context.Context, pools []string) ([]string, error)
	OpenBatches(ctx context.Context, pool string, after int64, limit int) ([]store.OpenBatch, error)
	UrgentBatches(ctx context.Context, pool string, limit int) ([]store.OpenBatch, error)
	NextCallers(ctx context.Context, pool string, limit int) ([]string, error)
	ReachableDevices(ctx context.Context, search store.ReachableSearch) (store.ReachablePage, error)
}

// Semaphore keeps the queues of the pools; *slots.Semaphore.
type Semaphore interface {
	Serve(ctx context.Context, calls []slots.Call) []slots.Served
	Node(ctx context.Context, pool string) string
	OfferSlots(ctx context.Context, pool string, pace slots.Pace, updates []slots.Update) (slots.QueueState, error)
	Join(ctx context.Context, pool string, pace slots.Pace, joiners []slots.Joiner) (slots.QueueState, error)
	Queues(ctx context.Context, pools []string) (waiting, due []string, err error)
	Offered(ctx context.Context, pools []string, device string) ([]string, error)
}

// Policies say how often tasks may start.
type Policies interface {
	// Any says whether a pool, or what starts in it, has any, as of the latest pass.
	Any(pool string) bool
	// Among are the tasks of devices in a pool that may not start now. Devices of which
	// nothing can be said are left out.
	Among(ctx context.Context, pool string, views []store.View) map[int64]decision.Obstacle
}

// Parking is what replicas tell one another of parked reports; *parked.Board.
type Parking interface {
	Newest(ctx context.Context, device string, remembered time.Duration) (number int64, gap bool, err error)
	Gone(ctx context.Context, reports []parked.Report) (gone []parked.Report, err error)
	Wake(ctx context.Context, calls []parked.Call) error
}

// Waker tells devices that are pushed to; *mqtt.Client.
type Waker interface {
	// Wake asks a device to report now: a slot is kept for it for hold; 0: there
	// is other news. It never blocks, and may be lost.
	Wake(device devices.ID, hold time.Duration)
}

// Config sets up a Notifier.
type Config struct {
	Ledger    Ledger
	Semaphore Semaphore
	Policies  Policies
	Parking   Parking // nil: no other replica parks reports
	Waker     Waker   // nil: no device can be pushed to

	ReportPeriod time.Duration
	Offer        time.Duration // a slot stays reserved so long for the device that it is offered to
	UrgentShare  int           // percent of a pool for which urgent batches go before all others
	MaxParked    int           // reports that are parked at once; default 20,000

	Unreachable func(view store.View) // a device can be told of nothing any more

	Meters   *meters.Set
	Logger   *slog.Logger
	Debug    *slog.Logger // for the steps of each handoff
	Panicked rescue.Told
	Now      func() time.Time // for elapsed time only
}

// Notifier tells waiters of free slots. It is safe for concurrent use, and starts nothing
// but what is done beside its callers, until Stop.
type Notifier struct {
	Pools *Pools
	Parks *Parks

	config     Config
	background *background
	offers     *serial[offering]
	looks      *serial[looking]
	gone       *serial[[]parked.Report]
	servings   *servings
	handoff    *prometheus.HistogramVec
}

// New builds a Notifier.
func New(config Config) *Notifier {
	n := &Notifier{
		Pools:      newPools(),
		Parks:      newParks(cmp.Or(config.MaxParked, maxParked), config.Now),
		config:     config,
		background: newBackground(config.Panicked),
		offers:     newSerial(offering.and),
		looks:      newSerial(looking.and),
		gone:       newSerial(together[parked.Report]),
		handoff: config.Meters.Histogram(
			handoffBuckets(), "handoff_duration_seconds",
			"Time from a slot falling free until the device it is kept for was told: by a push, or by the grant that its held request is answered with.", "pool",
		),
	}
	n.servings = newServings(n)
	config.Meters.Func("reports_parked", "Reports whose answer waits for a task (long poll).", n.Parks.count)
	return n
}

// handoffBuckets are fine where handoffs are when all is well: within a few
// milliseconds, of which a quantile is to be told.
func handoffBuckets() []float64 {
	return []float64{0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 60}
}

// HandedOn notes how long after a slot fell free the next device was told.
func (n *Notifier) HandedOn(pool string, took time.Duration) {
	n.handoff.WithLabelValues(pool).Observe(took.Seconds())
}

// Pace is what the queue of a pool goes by when it tells a device to come again.
func (n *Notifier) Pace(pool string) slots.Pace {
	hold, _ := n.Pools.Hold(pool)
	return slots.Pace{Hold: hold, Soonest: decision.Soonest, Period: n.config.ReportPeriod, Offer: n.config.Offer}
}

// Offered are those of the pools in which a slot is offered to a device.
func (n *Notifier) Offered(ctx context.Context, pools []string, device string) ([]string, error) {
	return n.config.Semaphore.Offered(ctx, n.Pools.AmongWaiting(pools), device) //nolint:wrapcheck // the semaphore says what it was doing
}

// Tell tells the queues of pools what became of a device, beside the caller, whatever it
// was offered there.
func (n *Notifier) Tell(device string, what slots.UpdateKind, pools []string) {
	for _, pool := range pools {
		n.offer(pool, offering{updates: []slots.Update{{Kind: what, Device: device}}})
	}
}

// Stop finishes what is under way, and starts no more. The other replicas find what is
// left.
func (n *Notifier) Stop(ctx context.Context) error {
	if err := n.background.stop(ctx); err != nil {
		return fmt.Errorf("handing on: %w", err)
	}
	return nil
}

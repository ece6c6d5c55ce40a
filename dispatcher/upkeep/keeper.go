package upkeep

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Ledger is the part of the store that the passes use. *store.Store implements it.
type Ledger interface {
	taskLedger
	poolLedger
	minuteLedger
	Retain(ctx context.Context, keep time.Duration, limit int) (store.DeletedCounts, error)
}

// taskLedger ends grants whose leases are over and tasks of batches, and updates windows and counts.
type taskLedger interface {
	LeaseClock(ctx context.Context) (store.LeaseClock, error)
	StoreClockPair(ctx context.Context, pair store.ClockPair) error
	Reap(ctx context.Context, cutoffs store.LapseCutoffs, limit int, decideState store.DecideTaskState) ([]store.Reaped, error)
	Expire(ctx context.Context, limit int) (int, error)
	ExpireWaited(ctx context.Context, after store.ExpiryPosition, maxSearched int) (int, store.ExpiryPosition, error)
	EndCancelled(ctx context.Context, limit int) (int, error)
	RefreshWindows(ctx context.Context, limit int) (int, error)
	Fold(ctx context.Context, limit int) (folded int, aborted []int64, err error)
}

// poolLedger reads the pools and their grants, and divides the counting of idle slots among the replicas.
type poolLedger interface {
	Pool(ctx context.Context, name string) (store.Pool, error)
	Pools(ctx context.Context, afterName string, limit int) ([]store.Pool, error)
	ChangedPools(ctx context.Context, within time.Duration) ([]store.Pool, error)
	Grants(ctx context.Context, pool string) ([]store.Grant, error)
	LiveLeases(ctx context.Context, leaseIDs []string) (map[string]bool, error)
	EndedLeases(ctx context.Context, leases []store.TaskLease) ([]string, error)
	OpenPools(ctx context.Context) ([]store.OpenPool, error)
	CountWaitingDevices(ctx context.Context, pool string, seenWithin time.Duration, after string, limit int) (store.WaitingCount, error)
	TakeIdleTime(ctx context.Context, minElapsed time.Duration) (time.Duration, error)
}

// Semaphore holds the slots of the pools. *slots.Semaphore implements it.
type Semaphore interface {
	Snapshot(ctx context.Context, pool string) (slots.Snapshot, error)
	Configure(ctx context.Context, pool string, config slots.Config) (changed bool, err error)
	Restore(ctx context.Context, pool string, config slots.Config, holders []slots.LedgerGrant) (restored bool, err error)
	Adopt(ctx context.Context, pool string, holders []slots.LedgerGrant) ([]bool, error)
	Forget(ctx context.Context, pool string) error
	Outages() int64 // number of times that a Redis node stopped answering
}

// Config configures a Keeper.
type Config struct {
	Ledger          Ledger
	Semaphore       Semaphore
	Waiters         *waiters.Notifier
	DecideTaskState store.DecideTaskState // decides the state of a task whose grant ended
	ReportPeriod    time.Duration

	Meters   *meters.Set
	Logger   *slog.Logger
	Panicked rescue.PanicHandler
	Now      func() time.Time // for elapsed time only
}

// Keeper has a method for each pass. It is safe for concurrent use.
type Keeper struct {
	config         Config
	metrics        *metrics
	idle           *idleCounts
	minutes        *minuteProgress
	guard          *clockGuard
	loggedDistrust atomic.Bool // true after the log said that the ledger's clock is not trusted, until the clock is trusted again
	followState    *followState
	restoring      singleflight.Group // one restore at a time for each pool

	waitSearch struct { // the search for tasks that have waited longer than their batch allows
		mu       sync.Mutex
		position store.ExpiryPosition // the next pass continues here
	}
}

// New returns a Keeper with this configuration.
func New(config Config) *Keeper {
	return &Keeper{config: config, metrics: newMetrics(config.Meters), idle: newIdleCounts(), minutes: &minuteProgress{}, guard: &clockGuard{}, followState: newFollowState()}
}

package policies

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/throttle"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

// maxRepairs is the maximum number of times that one check is repeated after repairLimiterState. One repair settles overdue reservations, and the
// next one fills unknown rules, because Redis reports only the overdue reservations first.
const maxRepairs = 2

// Ledger reads starts and policies. *store.Store implements it.
type Ledger interface {
	Starts(ctx context.Context, pool string, before int64, limit int) ([]store.GrantStart, error)
	StartByLease(ctx context.Context, task int64, lease string) (store.GrantStart, error)
	PolicyOwners(ctx context.Context) ([]store.PolicyOwner, error) // pools, batches and profiles with policies
	LimitSet(ctx context.Context, name string) (store.LimitSet, error)
	LimitSetVersions(ctx context.Context, sets []string) ([]store.LimitSetVersion, error)
}

// Limits holds the parts of a limiter, which keeps its counts in Redis.
type Limits struct {
	Reservations Reservations
	Takes        Takes
	Rebuilder    *limits.Rebuilder
	Usage        *limits.Usage
	Refusals     *limits.RefusalCounts
}

// NewLimits returns the parts of limiter that the policies use.
func NewLimits(limiter *limits.Limiter) *Limits {
	return &Limits{Reservations: limiter.Reservations, Takes: limiter.Takes, Rebuilder: limiter.Rebuilder, Usage: limiter.Usage, Refusals: limiter.Refusals}
}

// Reservations reserves the starts of tasks and settles the reservations. *limits.Reservations implements it.
type Reservations interface {
	Reserve(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error)
	Peek(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error)
	Settle(ctx context.Context, pool string, started limits.Check, others []limits.Check) error
	Count(ctx context.Context, pool string, checks []limits.Check, ago time.Duration) error
	Release(ctx context.Context, pool string, checks []limits.Check) error
	Overdue(ctx context.Context, pool string) ([]string, error)
}

// Takes counts the takes (requests of callers to a limit set). *limits.Takes implements it.
type Takes interface {
	Take(ctx context.Context, set string, takings []limits.Taking) ([]limits.TakeResult, error)
	Peek(ctx context.Context, set string, takings []limits.Taking) ([]limits.TakeResult, error)
	Return(ctx context.Context, set string, takings []limits.Taking) ([]int64, error)
}

// Config configures a Checker.
type Config struct {
	Ledger   Ledger
	Limits   *Limits // if nil, no policy can be checked: a task with policies starts only if all of them have on_error: open
	Meters   *meters.Set
	Logger   *slog.Logger
	Panicked rescue.PanicHandler
	Now      func() time.Time // for elapsed time only
}

// Checker checks the policies of tasks. It is safe for concurrent use.
type Checker struct {
	Sets *Sets // decides the takes of callers

	config            Config
	metrics           *metrics
	refusalSamples    *throttle.Samples[refusingPolicy]
	ruleCache         *ruleCache
	uncounted         *uncountedStarts
	poolsWithPolicies atomic.Pointer[map[string]bool] // pools with policies, as of the latest pass
	rebuilding        singleflight.Group
	filling           sync.Map // name of a running rebuild -> the time at which it began
}

// New returns a Checker with this configuration.
func New(config Config) *Checker {
	return &Checker{Sets: newSets(config), config: config, metrics: newMetrics(config.Meters), refusalSamples: throttle.NewSamples[refusingPolicy](config.Now), ruleCache: newRuleCache(), uncounted: newUncountedStarts()}
}

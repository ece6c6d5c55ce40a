package policies

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// mostRepairs bounds how often one check is made again after something was found out.
const mostRepairs = 2

// Ledger is what is read of starts and of policies; *store.Store.
type Ledger interface {
	Starts(ctx context.Context, pool string, before int64, limit int) ([]store.Start, error)
	StartOf(ctx context.Context, task int64, lease string) (store.Start, error)
	Limited(ctx context.Context) ([]store.Limited, error)
	LimitSet(ctx context.Context, name string) (store.LimitSet, error)
	LimitSetVersions(ctx context.Context, sets []string) ([]store.LimitSetVersion, error)
}

// Config sets up a Checker.
type Config struct {
	Ledger   Ledger
	Limits   Limits // nil: what has policies does not start
	Meters   *meters.Set
	Logger   *slog.Logger
	Panicked rescue.Told
	Now      func() time.Time // for elapsed time only
}

// Checker asks the policies. It is safe for concurrent use.
type Checker struct {
	Sets *Sets // what callers are told

	config     Config
	metrics    *metrics
	refusals   refusals
	rules      *ruleBook
	uncounted  *uncounted
	limited    limitedPools
	rebuilding singleflight.Group
	filling    sync.Map // what is rebuilt -> since when
}

// New builds a Checker.
func New(config Config) *Checker {
	return &Checker{Sets: newSets(config), config: config, metrics: newMetrics(config.Meters), refusals: newRefusals(config.Now), rules: newRuleBook(), uncounted: newUncounted()}
}

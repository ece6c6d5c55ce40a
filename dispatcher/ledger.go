package dispatcher

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Ledger is what a report needs of the store. It is batch-shaped: one outcome
// per input, in order.
type Ledger interface {
	Views(ctx context.Context, devices []string) ([]store.View, error)
	Claim(ctx context.Context, claims []store.Claim) ([]store.ClaimOutcome, error)
	Renew(ctx context.Context, renewals []store.Renewal) ([]store.RenewalOutcome, error)
	Redeliver(ctx context.Context, task, token int64) (store.Grant, error)
	RecordResults(ctx context.Context, results []store.Result, settle store.Settle) []store.ResultOutcome
	AskCancel(ctx context.Context, task, token int64, why string) error
}

// Registry is what is known of devices and their credentials.
type Registry interface {
	EnsureDevice(ctx context.Context, id string) (store.Device, error)
	EnrollDevice(ctx context.Context, id string, tokenHash []byte) error
	MarkOwnToken(ctx context.Context, device string) error
	TokenByHash(ctx context.Context, hash []byte) (store.Token, error)
	MergeAttributes(ctx context.Context, id string, patch json.RawMessage) error
	TouchDevices(ctx context.Context, seen map[string]time.Time) error
}

// Upkeep is what the background passes need of the store.
type Upkeep interface {
	Clock(ctx context.Context) (now time.Time, longestLease time.Duration, err error)
	Reap(ctx context.Context, before time.Time, limit int, settle store.Settle) ([]store.Reaped, error)
	Expire(ctx context.Context, limit int) (int, error)
	Pool(ctx context.Context, name string) (store.Pool, error)
	Pools(ctx context.Context, after string, limit int) ([]store.Pool, error)
	Grants(ctx context.Context, pool string) ([]store.Grant, error)
	LiveLeases(ctx context.Context, leases []string) (map[string]bool, error)
}

// Store is the whole of it; *store.Store on Postgres or SQLite.
type Store interface {
	Ledger
	Registry
	Upkeep
}

// Semaphore hands out the numbered slots of a pool; *slots.Semaphore.
type Semaphore interface {
	Acquire(ctx context.Context, pool string, requests []slots.Request) ([]slots.Acquisition, error)
	Release(ctx context.Context, pool string, leases []string) ([]bool, error)
	Snapshot(ctx context.Context, pool string) (slots.Snapshot, error)
	Configure(ctx context.Context, pool string, config slots.Config) (changed bool, err error)
	Restore(ctx context.Context, pool string, config slots.Config, holders []slots.Holding) (restored bool, err error)
	Adopt(ctx context.Context, pool string, holders []slots.Holding) ([]bool, error)
}

package dispatcher

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Ledger is what a report needs of the store. It is batch-shaped: one outcome
// per input, in order.
type Ledger interface {
	Views(ctx context.Context, devices []string) ([]store.View, error)
	TaskView(ctx context.Context, task int64) (store.TaskView, error)
	Claim(ctx context.Context, claims []store.Claim) ([]store.ClaimOutcome, error)
	Renew(ctx context.Context, renewals []store.Renewal) ([]store.RenewalOutcome, error)
	Redeliver(ctx context.Context, task, token int64) (store.Grant, error)
	RecordResults(ctx context.Context, results []store.Result, settle store.Settle) []store.ResultOutcome
	Starts(ctx context.Context, pool string, before int64, limit int) ([]store.Start, error)
	StartOf(ctx context.Context, task int64, lease string) (store.Start, error)
	AskCancel(ctx context.Context, task, token int64, why string) error
	ForceRelease(ctx context.Context, pool string, slot int, f store.Force, settle store.Settle) (store.Grant, error)
}

// Registry is what is known of devices and their credentials.
type Registry interface {
	EnsureDevice(ctx context.Context, id string) (store.Device, error)
	CreateDevice(ctx context.Context, actor, id string, spec store.DeviceSpec, tokenHash []byte, set store.SetAccount) (store.Device, error)
	ImportDevices(ctx context.Context, actor string, list []store.NewDevice, existing store.Existing, overlap time.Duration) (given []bool, err error)
	EnrollDevice(ctx context.Context, id string, tokenHash []byte, set store.SetAccount) error
	RotateDeviceToken(ctx context.Context, actor, id string, tokenHash []byte, overlap time.Duration, set store.SetAccount) (olderUntil time.Time, err error)
	SetBlocked(ctx context.Context, actor, id string, blocked bool) error
	DeleteDevice(ctx context.Context, actor, id string, cancel bool) (store.Removal, error)
	ApplyAccountChanges(ctx context.Context, limit int, within time.Duration, apply store.ApplyAccount) (applied int, err error)
	MarkOwnToken(ctx context.Context, device string) error
	TokenByHash(ctx context.Context, hash []byte) (store.Token, error)
	MergeAttributes(ctx context.Context, id string, patch json.RawMessage) error
	TouchDevices(ctx context.Context, seen map[string]store.Seen) error
}

// Upkeep is what the background passes need of the store.
type Upkeep interface {
	LeaseClock(ctx context.Context) (store.LeaseClock, error)
	KeepClockPair(ctx context.Context, pair store.ClockPair) error
	Reap(ctx context.Context, lapses store.Lapses, limit int, settle store.Settle) ([]store.Reaped, error)
	NextLapse(ctx context.Context) (left time.Duration, found bool, err error)
	Expire(ctx context.Context, limit int) (int, error)
	EndCancelled(ctx context.Context, limit int) (int, error)
	RefreshWindows(ctx context.Context, limit int) (int, error)
	Fold(ctx context.Context, limit int) (folded int, aborted []int64, err error)
	Retain(ctx context.Context, keep time.Duration, limit int) (store.Retained, error)
	Pool(ctx context.Context, name string) (store.Pool, error)
	Pools(ctx context.Context, after string, limit int) ([]store.Pool, error)
	ChangedPools(ctx context.Context, within time.Duration) ([]store.Pool, error)
	PoolsWithWork(ctx context.Context, pools []string) ([]string, error)
	OpenBatches(ctx context.Context, pool string, after int64, limit int) ([]store.OpenBatch, error)
	Seats(ctx context.Context, search store.Search) (store.Found, error)
	Limited(ctx context.Context) ([]store.Limited, error)
	Grants(ctx context.Context, pool string) ([]store.Grant, error)
	LiveLeases(ctx context.Context, leases []string) (map[string]bool, error)
	EndedLeases(ctx context.Context, leases []store.TaskLease) ([]string, error)
	OpenPools(ctx context.Context) ([]store.OpenPool, error)
	WaitingHere(ctx context.Context, pool string, within time.Duration, most int) (int, error)
	TakeIdleTime(ctx context.Context, least time.Duration) (time.Duration, error)
}

// Store is the whole of it; *store.Store on Postgres or SQLite.
type Store interface {
	Ledger
	Registry
	Upkeep
}

// Accounts are those of the devices at the MQTT broker: what opens a session
// there. Every call ends with its context, and may be repeated.
type Accounts interface {
	// Set makes or changes the account; secret is its password from now on. A
	// disabled one opens no session.
	Set(ctx context.Context, device devices.ID, secret string, enabled bool) error
	// Enable lets the account open sessions again; none is no error.
	Enable(ctx context.Context, device devices.ID) error
	// Disable ends the account's sessions and lets it open none; none is no error.
	Disable(ctx context.Context, device devices.ID) error
	// Delete ends the account's sessions and removes it; none is no error.
	Delete(ctx context.Context, device devices.ID) error
	// AsksLedger says that there are no accounts to make: the broker asks the
	// ledger about each new session, and Set does nothing.
	AsksLedger() bool
	// Disconnect ends the sessions that Set left open with an older secret.
	Disconnect(ctx context.Context, device devices.ID) error
}

// Semaphore hands out the numbered slots of a pool; *slots.Semaphore.
type Semaphore interface {
	Acquire(ctx context.Context, pool string, pace slots.Pace, requests []slots.Request) ([]slots.Acquisition, []slots.Offer, error)
	Release(ctx context.Context, pool string, pace slots.Pace, leases []string) (freed []bool, offers []slots.Offer, err error)
	HandOn(ctx context.Context, pool string, pace slots.Pace, news []slots.News) (slots.Line, error)
	LineUp(ctx context.Context, pool string, pace slots.Pace, seats []slots.Seat) (slots.Line, error)
	Lines(ctx context.Context, pools []string) (waiting, due []string, err error)
	Offered(ctx context.Context, pools []string, device string) ([]string, error)
	Standing(ctx context.Context, pool, device string, tasks []slots.Waiter) (slots.Standing, error)
	Snapshot(ctx context.Context, pool string) (slots.Snapshot, error)
	Configure(ctx context.Context, pool string, config slots.Config) (changed bool, err error)
	Restore(ctx context.Context, pool string, config slots.Config, holders []slots.Holding) (restored bool, err error)
	Adopt(ctx context.Context, pool string, holders []slots.Holding) ([]bool, error)
	Forget(ctx context.Context, pool string) error
	Outages() int64
}

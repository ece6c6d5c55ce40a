package dispatcher

import (
	"context"
	"encoding/json"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/dispatcher/upkeep"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// reportLedger reads devices, records the contents of reports, and makes, repeats and ends grants. Suppress ends tasks that get no grant. A
// method with a list of inputs returns one result for each, in their order.
type reportLedger interface {
	DeviceRegistrations(ctx context.Context, devices []string) ([]store.DeviceView, error)
	DeviceViews(ctx context.Context, devices []string) ([]store.DeviceView, error)
	RecordResults(ctx context.Context, results []store.Result, decideState store.DecideTaskState) []store.ResultOutcome
	Renew(ctx context.Context, renewals []store.Renewal) ([]store.RenewalOutcome, error)
	AskCancel(ctx context.Context, task, token int64, reason string) error
	MergeAttributes(ctx context.Context, deviceID string, patch json.RawMessage) error
	Claim(ctx context.Context, claims []store.Claim, waitForLock bool) ([]store.ClaimOutcome, error)
	Suppress(ctx context.Context, suppressions []store.Suppression) ([]bool, error)
	Redeliver(ctx context.Context, task, token int64) (store.Grant, error)
	ForceRelease(ctx context.Context, pool string, slot int, release store.ForcedRelease, decideState store.DecideTaskState) (store.Grant, error)
}

// leaseLedger keeps the leases of callers.
type leaseLedger interface {
	OpenLease(ctx context.Context, request store.NewLease) (store.LeaseTask, error)
	DropLease(ctx context.Context, lease store.LeaseTask) (dropped bool, err error)
	SetLeaseWait(ctx context.Context, lease store.LeaseTask, waitFor time.Duration) error
	GiveUpLease(ctx context.Context, actor string, task int64) (held bool, err error)
	YieldPlace(ctx context.Context, task int64) (yielded bool, err error)
	Task(ctx context.Context, id int64) (store.Task, *store.Grant, []store.Attempt, error)
}

// explanationLedger reads waiting tasks, and the facts that explain their wait.
type explanationLedger interface {
	TaskView(ctx context.Context, task int64) (store.TaskView, error)
	DeviceViews(ctx context.Context, devices []string) ([]store.DeviceView, error)
	SampleWaiting(ctx context.Context, where store.TaskScope, maxTasks int) (store.WaitingTasks, error)
	NextWaiting(ctx context.Context, where store.TaskScope, after store.WaitingPosition, limit int) (store.WaitingTasks, error)
	CallerBoundOf(ctx context.Context, pool string, task int64) (store.CallerBound, error)
}

// Store is the part of the ledger that this package and the packages below it use. *store.Store implements it on
// Postgres and on SQLite.
type Store interface {
	reportLedger
	leaseLedger
	explanationLedger
	policies.Ledger
	waiters.Ledger
	upkeep.Ledger
	credentials.Ledger
	seen.Ledger
	marks.Ledger
}

// Semaphore assigns the numbered slots of the pools. *slots.Semaphore implements it.
type Semaphore interface {
	ReadQueuePlaces(ctx context.Context, pool, device string, tasks []slots.Want) (slots.QueuePlaces, error)
	waiters.Semaphore
	upkeep.Semaphore
}

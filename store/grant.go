package store

import (
	"context"
	"encoding/json"
	"time"
)

// grants holds the grants: claims, renewals, results, the ends of leases, and the views by which the dispatcher decides about them.
type grants struct{ *connection }

// Grant is a slot in use: one task of one device holds one numbered slot.
type Grant struct {
	Task         int64
	Batch        int64
	Pool         string
	Slot         int
	Device       string
	Token        int64  // fencing token: unique, increasing per task and per slot
	LeaseID      string // id of the lease, under which the semaphore holds the slot
	Attempt      int    // 1 + Task.Attempts before the grant
	Kind         string
	Payload      json.RawMessage
	GrantedAt    time.Time
	LeaseUntil   time.Time
	MaxUntil     time.Time     // no renewal extends the lease beyond this time
	LeaseLength  time.Duration // the length of the lease, also after a renewal that names no length
	LongestLease time.Duration // the longest value that LeaseLength ever had; the reaper waits for this time, see LapseCutoffs
	Redelivered  int
	CancelWhy    string        // if not empty, the device is asked to stop for this reason
	Remaining    time.Duration // LeaseUntil minus the time at which the ledger was read, by the database's clock; may be negative
}

// Candidate is one of the best open tasks of a device in a batch (DeviceViews).
type Candidate struct {
	Task               int64
	Batch              int64
	Pool               string
	Priority           int
	Weight             int
	Urgent             bool          // the batch of the task is urgent
	CreatedAt          time.Time     // creation of the batch; it determines the age of the task
	NotBefore          time.Time     // NotBefore of the batch; zero means that the tasks may start at once
	RetryAt            time.Time     // end of the backoff of the task, or its own not_before; zero means that it may start at once
	RetryAtIsNotBefore bool          // RetryAt is the task's own not_before, and not the end of a backoff
	Attempt            int           // number of the attempt that a grant of the task would begin
	StartedBefore      bool          // an attempt of the task has ended
	Lease              time.Duration // the length of the lease that a grant of the task would get
	Standstill         time.Time     // after a restore the pool grants nothing before this time; zero means that there was no restore
	PoolPaused         bool
	BatchPaused        bool

	Window, PoolWindow Opening
	FinishInside       bool // the task starts only if the windows stay open for longer than Lease

	// ExpiresAt is the earliest time at which the task may expire: by its not_after, or by the not_after or max_wait of its batch (max_wait
	// only before its first start). Zero means never.
	ExpiresAt time.Time

	// PoolLimits, Limits and ProfileLimits are the policies of the pool, the batch and the profile of the device, or nil. Kind and Payload are
	// set only if one of these fields is not nil.
	PoolLimits, Limits, ProfileLimits json.RawMessage

	Kind    string
	Payload json.RawMessage

	FitsDDI bool // a device that speaks DDI can do the task: see fitsDDI
}

// DeviceView is one consistent reading of everything that concerns a report of a device.
type DeviceView struct {
	Now        time.Time   // time of the reading, by the database's clock
	Standstill time.Time   // after a restore Grant is not delivered again before this time; zero means that there was no restore
	Device     *Device     // nil means not registered
	Deleted    bool        // the device is not registered because it was deleted
	Grant      *Grant      // the grant of the device; its lease may have ended, if it is not yet reaped. nil means no grant
	Candidates []Candidate // the best open tasks of each batch: one, or at most maxCandidates if policies apply. Expired tasks are left out

	// NextStart is the earliest time after Now at which an open task may start, by its not_before or the end of its backoff. Zero means
	// that no task waits for a time.
	NextStart time.Time
}

// Claim is a request to grant a task on a slot that the semaphore gave. LeaseID is the id of the lease, under which the semaphore holds the
// slot.
type Claim struct {
	Task    int64  `json:"task"`
	Device  string `json:"device"`
	Pool    string `json:"pool"`
	Slot    int    `json:"slot"`
	LeaseID string `json:"lease"`
}

// ClaimStatus is the ledger's answer to a Claim: whether the task was granted, or why not.
type ClaimStatus int

// The answers to a Claim.
const (
	// ClaimLost means that this device cannot get the task now, because the task was granted, ended, paused or cancelled, or because the device
	// has a grant.
	ClaimLost ClaimStatus = iota
	// ClaimGranted means that the grant is committed.
	ClaimGranted
	// ClaimConflict means that the slot is taken or beyond the capacity, so the semaphore is out of date and must be reconciled.
	ClaimConflict
	// ClaimLocked means that the pool is being resized, so the claim was not evaluated.
	ClaimLocked
	// ClaimCallersFull means that callers hold as many slots of the pool as they may.
	ClaimCallersFull
)

// ClaimOutcome is the answer to one Claim. Grant is set only if Status is ClaimGranted.
type ClaimOutcome struct {
	Status ClaimStatus
	Grant  Grant
}

// Renewal is a request of a device to extend the lease of its running task.
type Renewal struct {
	Task, Token int64
	Device      string
	Lease       time.Duration // the requested length of the lease; 0 means that the length stays. Ignored if the lease would then not end later than before
}

// RenewalOutcome is the answer to one Renewal.
type RenewalOutcome struct {
	Found      bool  // whether there is a grant with the task, token and device of the renewal
	Grant      Grant // the grant after the renewal, with Remaining
	Superseded bool  // if Found is false: whether the task is granted under another token
}

// Result is the report of a device that its task has ended. It ends the grant.
type Result struct {
	Device      string
	Task, Token int64
	Cause       EndCause // BySuccess, ByFailure, ByReject or ByReturn
	Output      json.RawMessage
	Dropped     bool // an output was sent, but was too large to keep
	Error       string
	RetryAfter  time.Duration // requested delay before the next attempt; only with ByReturn
}

// ResultOutcome is the answer to one Result.
type ResultOutcome struct {
	Kind  ResultKind
	Ended *Grant    // the grant that this result ended; its slot must be released. nil means that the result ended no grant
	State TaskState // state of the task afterwards; empty if Kind is ResultUnknown. Dispatched means that the task has a newer grant
	Last  bool      // true only if the result ended the only open task of the device, and the device is not blocked
	Err   error     // if not nil, this result was not recorded; other results of the call may be
}

// ResultKind is the way in which a result was handled.
type ResultKind string

// The ways in which a result is handled; see `outcome` in the protocol.
const (
	ResultRecorded  ResultKind = "recorded"
	ResultDuplicate ResultKind = "duplicate"
	ResultLate      ResultKind = "late"
	ResultUnknown   ResultKind = "unknown"
)

// Reaped is a grant that the reaper ended because its device did not report in time.
type Reaped struct {
	Grant Grant
	State TaskState // state of the task afterwards
}

// grantColumns are the columns of a grant g with its task t and batch b, and the database's time. Each column except the time may be NULL.
const grantColumns = `g.task, g.batch, g.pool, g.slot, g.device, g.token, g.lease, g.attempt, b.kind, coalesce(t.payload, b.payload),
	g.granted_at, g.lease_until, g.max_until, g.lease_ms, ` + longestLease + `, g.redelivered, g.cancel_why, {now}`

// longestLease is the longest length in ms that the lease of grant g ever had. The reaper ends g only after a lease of this length
// (LapseCutoffs), because no answer to the holder of g promised a longer lease.
const longestLease = `coalesce(g.longest_ms, g.lease_ms)`

const grantTables = `grants g JOIN tasks t ON t.id = g.task JOIN batches b ON b.id = g.batch`

func grantScanDest(grant *Grant) (scanDest []any) {
	return []any{
		&grant.Task, &grant.Batch, &grant.Pool, &grant.Slot, &grant.Device, &grant.Token, &grant.LeaseID, &grant.Attempt, &grant.Kind,
		&grant.Payload, &grant.GrantedAt, &grant.LeaseUntil, &grant.MaxUntil, &grant.LeaseLength, &grant.LongestLease, &grant.Redelivered,
		&grant.CancelWhy,
		remaining{grant},
	}
}

// remaining computes Grant.Remaining from LeaseUntil and the database's time, whose column must come after LeaseUntil.
type remaining struct{ of *Grant }

// Scan sets Grant.Remaining to the time from now to LeaseUntil. column is the present time of the database's clock.
func (s remaining) Scan(column any) error {
	var now time.Time
	if err := (instant{&now}).Scan(column); err != nil {
		return err
	}
	if !s.of.LeaseUntil.IsZero() {
		s.of.Remaining = s.of.LeaseUntil.Sub(now)
	}
	return nil
}

// Grants returns the grants of a pool in the order of slots, without Kind and Payload. It also returns a grant whose lease has ended, if it
// is not reaped yet.
func (s grants) Grants(ctx context.Context, pool string) ([]Grant, error) {
	return collect(ctx, s.readSession(), grantScanDest, `SELECT `+grantOnlyColumns+` FROM grants g WHERE g.pool = $1 ORDER BY g.slot`, pool)
}

// LiveLeases returns the set of the leaseIDs that have a grant.
func (s grants) LiveLeases(ctx context.Context, leaseIDs []string) (liveIDs map[string]bool, err error) {
	live := map[string]bool{}
	if len(leaseIDs) == 0 {
		return live, nil
	}
	found, err := collect(ctx, s.readSession(), singleColumn[string],
		`SELECT g.lease FROM grants g WHERE g.lease IN (SELECT name FROM {names})`, namesToJSONArray(leaseIDs))
	for _, lease := range found {
		live[lease] = true
	}
	return live, err
}

// EndedLeases returns the ids of the leases in leases whose grants have ended.
func (s grants) EndedLeases(ctx context.Context, leases []TaskLease) (endedIDs []string, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	return collect(ctx, s.readSession(), singleColumn[string],
		`SELECT a.lease FROM {names} JOIN attempts a ON a.task = names.n AND a.lease = names.name`, rowsToJSONArray(leases))
}

// TaskLease is the lease id of a grant, with the task of the grant.
type TaskLease struct {
	Task    int64  `json:"n"`
	LeaseID string `json:"name"`
}

// Redeliver adds 1 to Redelivered of the task's grant, and returns the grant. It returns ErrNotFound if the grant has ended or has another
// token, or if its pool grants nothing after a restore.
func (s grants) Redeliver(ctx context.Context, taskID, fencingToken int64) (Grant, error) {
	var g Grant
	err := s.write(ctx, func(tx session) error {
		n, err := tx.exec(ctx, `UPDATE grants SET redelivered = redelivered + 1 WHERE task = $1 AND token = $2
			AND NOT EXISTS (SELECT 1 FROM pools p WHERE p.name = grants.pool AND NOT `+poolMayGrantSQL+`)`, taskID, fencingToken)
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrNotFound
		}
		g, err = queryOne(ctx, tx, grantScanDest, `SELECT `+grantColumns+` FROM `+grantTables+` WHERE g.task = $1`, taskID)
		return err
	})
	return g, err
}

// AskCancel records that the device with this task and fencing token is asked to stop for reason. If the device was asked before, the
// earlier reason stays. If the grant has ended, AskCancel does nothing.
func (s grants) AskCancel(ctx context.Context, taskID, fencingToken int64, reason string) error {
	return s.write(ctx, func(tx session) error {
		n, err := tx.exec(ctx, `UPDATE grants SET cancel_why = $3 WHERE task = $1 AND token = $2 AND cancel_why = ''`, taskID, fencingToken, reason)
		if err != nil || n == 0 {
			return err
		}
		_, err = tx.exec(ctx, `
			INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
			SELECT {now}, 'task.cancel_asked', '`+systemActor+`', 'program', pool, batch, task, device, token, cancel_why FROM grants WHERE task = $1`, taskID)
		return err
	})
}

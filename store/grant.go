package store

import (
	"context"
	"encoding/json"
	"time"
)

// grants are the grants of the ledger: claims, renewals, results, lapses, and the views
// by which they are decided.
type grants struct{ *connection }

// Grant is a slot in use: one task of one device on one numbered slot.
type Grant struct {
	Task        int64
	Batch       int64
	Pool        string
	Slot        int
	Device      string
	Token       int64  // fencing token: unique, increasing per task and per slot
	Lease       string // lease id in the semaphore
	Attempt     int    // 1 for the first counted attempt
	Kind        string
	Payload     json.RawMessage
	GrantedAt   time.Time
	LeaseUntil  time.Time
	MaxUntil    time.Time     // renewals never reach beyond
	LeaseLength time.Duration // the length of a renewal that names none
	Longest     time.Duration // the longest length that the grant was ever given; the clock guard waits for it
	Redelivered int
	CancelWhy   string        // not empty: the device is asked to stop
	Remaining   time.Duration // LeaseUntil - the database's clock at the reading; may be negative
}

// Candidate is the best open task of one batch for one device.
type Candidate struct {
	Task        int64
	Batch       int64
	Pool        string
	Priority    int
	Weight      int
	Urgent      bool          // its batch is
	CreatedAt   time.Time     // of the batch: its age
	NotBefore   time.Time     // of the batch; zero = at once
	RetryAt     time.Time     // of the task, after an attempt or by its own not_before; zero = at once
	NotBegun    bool          // RetryAt is its own not_before
	Attempt     int           // the number this attempt would have
	Tried       bool          // it started before, also if that was not counted
	Lease       time.Duration // what a grant would get
	Standstill  time.Time     // after a restore the pool grants nothing before this time. If it is zero, there was no restore
	PoolPaused  bool
	BatchPaused bool

	Window, PoolWindow Opening
	FinishInside       bool // nothing starts with less than Lease left of a window

	// Policies of its pool, its batch and its device's profile; nil = none. With any, also what they may ask about.
	PoolLimits, Limits, ProfileLimits json.RawMessage

	Kind    string
	Payload json.RawMessage
}

// View is one consistent reading of what concerns a device's report.
type View struct {
	Now        time.Time   // the database's clock
	Standstill time.Time   // after a restore Grant is not delivered again before this time. If it is zero, there was no restore
	Device     *Device     // nil: not registered
	Deleted    bool        // not registered because it was deleted
	Grant      *Grant      // in force, or lapsed and not yet reaped; nil: none
	Candidates []Candidate // one per batch with open work; expired tasks are left out
}

// Claim asks for a task to be granted on a slot that the semaphore gave.
type Claim struct {
	Task   int64
	Device string
	Pool   string
	Slot   int
	Lease  string
}

// ClaimStatus is the ledger's answer to a Claim.
type ClaimStatus int

// The answers to a Claim.
const (
	// ClaimLost: the task is no longer open to this device (granted, ended,
	// paused, cancelled, or the device holds another grant).
	ClaimLost ClaimStatus = iota
	// ClaimGranted: the grant is committed.
	ClaimGranted
	// ClaimConflict: the slot is taken or beyond what the capacity allows:
	// the semaphore is stale and must be reconciled.
	ClaimConflict
	// ClaimLocked: the pool is being resized; nothing was found out.
	ClaimLocked
	// ClaimCallersFull: callers hold as many slots of the pool as they may.
	ClaimCallersFull
)

// ClaimOutcome answers one Claim; Grant is set when granted.
type ClaimOutcome struct {
	Status ClaimStatus
	Grant  Grant
}

// Renewal asks for more time for a running task.
type Renewal struct {
	Task, Token int64
	Device      string
	Lease       time.Duration // the new length; it counts only if the lease then ends later. If it is 0, the length stays
}

// RenewalOutcome answers one Renewal.
type RenewalOutcome struct {
	Found      bool  // a grant with this task, token and device exists
	Grant      Grant // as it is now; Remaining after the renewal
	Superseded bool  // not Found, and the task is granted under another token
}

// Result is what a device says of the end of a grant.
type Result struct {
	Device      string
	Task, Token int64
	Cause       EndCause // BySuccess, ByFailure, ByReject or ByReturn
	Output      json.RawMessage
	Dropped     bool // an output was sent, and was too large
	Error       string
	RetryAfter  time.Duration // with ByReturn
}

// ResultOutcome answers one Result.
type ResultOutcome struct {
	Kind  ResultKind
	Ended *Grant    // the grant that this result ended, to be released; nil: none
	State TaskState // of the task afterwards; empty with ResultUnknown
	Err   error     // this result was not recorded; the others may be
}

// ResultKind is how a result was taken.
type ResultKind string

// How a result was taken; see the protocol's `outcome`.
const (
	ResultRecorded  ResultKind = "recorded"
	ResultDuplicate ResultKind = "duplicate"
	ResultLate      ResultKind = "late"
	ResultUnknown   ResultKind = "unknown"
)

// Reaped is a grant taken back from a device that did not report in time.
type Reaped struct {
	Grant Grant
	State TaskState // of the task afterwards
}

// grantColumns are those of grants g with its task t and its batch b, and the
// clock: all may be NULL together.
const grantColumns = `g.task, g.batch, g.pool, g.slot, g.device, g.token, g.lease, g.attempt, b.kind, coalesce(t.payload, b.payload),
	g.granted_at, g.lease_until, g.max_until, g.lease_ms, ` + longestLease + `, g.redelivered, g.cancel_why, {now}`

// longestLease is the length that the clock guard waits for before it ends grant g. Every answer to the holder
// of g promised at most that time.
const longestLease = `coalesce(g.longest_ms, g.lease_ms)`

const grantTables = `grants g JOIN tasks t ON t.id = g.task JOIN batches b ON b.id = g.batch`

func grantDest(g *Grant) []any {
	return []any{
		opt(&g.Task), opt(&g.Batch), opt(&g.Pool), opt(&g.Slot), opt(&g.Device), opt(&g.Token), opt(&g.Lease), opt(&g.Attempt),
		opt(&g.Kind),
		document{&g.Payload},
		instant{&g.GrantedAt},
		instant{&g.LeaseUntil},
		instant{&g.MaxUntil},
		millis{&g.LeaseLength},
		millis{&g.Longest},
		opt(&g.Redelivered), opt(&g.CancelWhy),
		remaining{g},
	}
}

// remaining reads the clock, after LeaseUntil.
type remaining struct{ of *Grant }

// Scan expects the time of the database.
func (s remaining) Scan(src any) error {
	var now time.Time
	if err := (instant{&now}).Scan(src); err != nil {
		return err
	}
	if !s.of.LeaseUntil.IsZero() {
		s.of.Remaining = s.of.LeaseUntil.Sub(now)
	}
	return nil
}

// Grants returns the grants of a pool by slot, those lapsed and not yet
// reaped included, without Kind and Payload.
func (s grants) Grants(ctx context.Context, pool string) ([]Grant, error) {
	return collect(ctx, s.read(), grantDest, `SELECT `+heldColumns+` FROM grants g WHERE g.pool = $1 ORDER BY g.slot`, pool)
}

// LiveLeases says which of these lease ids have a grant. Absent is false.
func (s grants) LiveLeases(ctx context.Context, leases []string) (map[string]bool, error) {
	live := map[string]bool{}
	if len(leases) == 0 {
		return live, nil
	}
	found, err := collect(ctx, s.read(), only[string],
		`SELECT g.lease FROM grants g WHERE g.lease IN (SELECT name FROM {names})`, names(leases))
	for _, lease := range found {
		live[lease] = true
	}
	return live, err
}

// EndedLeases are those of these lease ids, given by task, whose grants have ended.
func (s grants) EndedLeases(ctx context.Context, leases []TaskLease) ([]string, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	return collect(ctx, s.read(), only[string],
		`SELECT a.lease FROM {names} JOIN attempts a ON a.task = names.n AND a.lease = names.name`, input(leases))
}

// TaskLease is a lease id of a grant of a task.
type TaskLease struct {
	Task  int64  `json:"n"`
	Lease string `json:"name"`
}

// Redeliver counts that the grant is sent once more; ErrNotFound when it is
// no longer in force under this token.
func (s grants) Redeliver(ctx context.Context, task, token int64) (Grant, error) {
	var g Grant
	err := s.write(ctx, func(tx session) error {
		n, err := tx.exec(ctx, `UPDATE grants SET redelivered = redelivered + 1 WHERE task = $1 AND token = $2
			AND NOT EXISTS (SELECT 1 FROM pools p WHERE p.name = grants.pool AND NOT `+granting+`)`, task, token)
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrNotFound
		}
		g, err = one(ctx, tx, grantDest, `SELECT `+grantColumns+` FROM `+grantTables+` WHERE g.task = $1`, task)
		return err
	})
	return g, err
}

// AskCancel notes that the device is asked to stop, unless it was before. A
// grant that is gone is no error.
func (s grants) AskCancel(ctx context.Context, task, token int64, why string) error {
	return s.write(ctx, func(tx session) error {
		n, err := tx.exec(ctx, `UPDATE grants SET cancel_why = $3 WHERE task = $1 AND token = $2 AND cancel_why = ''`, task, token, why)
		if err != nil || n == 0 {
			return err
		}
		_, err = tx.exec(ctx, `
			INSERT INTO events (at, kind, actor, pool, batch, task, device, token, detail)
			SELECT {now}, 'task.cancel_asked', 'dispatcher', pool, batch, task, device, token, cancel_why FROM grants WHERE task = $1`, task)
		return err
	})
}

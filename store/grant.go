package store

import (
	"encoding/json"
	"time"
)

// Grant is a place in use: one task of one device on one numbered slot.
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
	LeaseLength time.Duration // what a renewal gives
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
	CreatedAt   time.Time     // of the batch: its age
	EligibleAt  time.Time     // later of the batch's NotBefore and the task's RetryAt; zero = at once
	Attempt     int           // the number this attempt would have
	Lease       time.Duration // what a grant would get
	PoolPaused  bool
	BatchPaused bool
}

// View is one consistent reading of what concerns a device's report.
type View struct {
	Now        time.Time   // the database's clock
	Device     *Device     // nil: never seen
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

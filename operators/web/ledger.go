package web

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Ledger is the data that the dashboard reads in addition to the API. *store.Store implements it. No
// other file of this package uses the store.
type Ledger interface {
	eventLog

	// The sessions of all replicas. secretHash is the hash of the secret of a session, and tokenHash is the hash of its operator token. A
	// session ends when lifetime has passed since OpenSession. Reading it does not extend it. OpenSession and CloseSession write an event
	// with the actor and from, the actor's address.
	OpenSession(ctx context.Context, actor, from string, secretHash, tokenHash []byte, lifetime time.Duration) error
	Session(ctx context.Context, secretHash []byte) (tokenHash []byte, err error) // errNotFound if there is none
	CloseSession(ctx context.Context, actor, from string, secretHash []byte) error
	TokenByHash(ctx context.Context, hash []byte) (store.Token, error) // errNotFound if there is none

	// The recent counts of all pools: grants and reaps from the log of events, and the counts (denials, conflicts, drift) that only the
	// replicas have.
	SlotChangesBetween(ctx context.Context, afterEvent, lastEvent int64) ([]slotChanges, error)
	ReplicaTallies(ctx context.Context) ([]replicaTallies, error)

	// The data of pages that the API does not provide.
	InOneSnapshot(ctx context.Context, read func(ctx context.Context, at ledgerSnapshot) error) error
	Replicas(ctx context.Context) ([]replicaRow, time.Time, error)
	TaskCounts(ctx context.Context, pool string, maxHeld int) (store.TaskCounts, error)
}

// eventLog reads the log of events of all replicas.
type eventLog interface {
	Events(ctx context.Context, filter eventFilter) ([]event, error)
	ReadEventPosition(ctx context.Context, readUpTo int64) (eventPosition, error)
	EventsComplete(ctx context.Context, position eventPosition) (bool, error)
}

// Types that the ledger returns. A slotChanges has the numbers of grants and of ended grants in a pool in one interval.
type (
	event          = store.Event
	eventFilter    = store.EventFilter
	eventPosition  = store.EventPosition
	slotChanges    = store.SlotChanges
	replicaRow     = store.Replica
	replicaTallies = store.Tallies
	ledgerSnapshot = store.Snapshot
)

// seenWithin is the precision of the stored last_seen time of a device.
const seenWithin = store.SeenPrecision

var errNotFound = store.ErrNotFound

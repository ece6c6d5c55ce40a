package store

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound means that there is no row with this name or id.
	ErrNotFound = errors.New("not found")
	// ErrExists means that a row with this name exists already.
	ErrExists = errors.New("already exists")
	// ErrUnknownPool means that a batch names a pool that does not exist.
	ErrUnknownPool = errors.New("unknown pool")
	// ErrUnknownDevice means that a task names a device that is not registered, and that the request accepts only registered devices.
	ErrUnknownDevice = errors.New("unknown device")
	// ErrUnknownProfile means that a device is given a profile that does not exist.
	ErrUnknownProfile = errors.New("unknown profile")
	// ErrInUse means that a profile cannot be deleted because devices have it.
	ErrInUse = errors.New("in use")
	// ErrNotRetriable means that a task cannot be retried: it succeeded, its batch was cancelled, its time is over, or it is the lease of a
	// caller.
	ErrNotRetriable = errors.New("cannot be retried")
	// ErrNoTasks means that a batch has no tasks.
	ErrNoTasks = errors.New("no tasks")
	// ErrInProgress means that a request with the same idempotency key is in progress.
	ErrInProgress = errors.New("in progress")
	// ErrKeyReused means that a different request already used the same idempotency key.
	ErrKeyReused = errors.New("idempotency key used by another request")
	// ErrOpenTasks means that a device or pool cannot be deleted because it has open tasks.
	ErrOpenTasks = errors.New("has open tasks")
	// ErrNeverStarts means that the windows of a batch and of its pool are never open together for longer than the lease of the batch.
	ErrNeverStarts = errors.New("no task could ever start: no opening is longer than the lease")
	// ErrTooLarge means that the attributes of a device would exceed their limits.
	ErrTooLarge = errors.New("too large")
	// ErrDiskFull means that the disk of the database has no room for the write.
	ErrDiskFull = errors.New("the disk of the ledger is full")
	// ErrOutcomeUnknown means that the COMMIT was sent and its answer was lost. The change may or may not be in force.
	ErrOutcomeUnknown = errors.New("outcome of the commit unknown")
)

// describe adds a description to the error *err, if there is one. It is deferred by functions whose errors all have the same description.
func describe(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}

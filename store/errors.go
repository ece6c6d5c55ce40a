package store

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
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
	// ErrNotRetriable means that a task cannot become pending again: it succeeded, its batch was cancelled, its time is over, or it is the lease of
	// a caller.
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

// wrapError adds a description to *err, if *err is not nil. A function that describes all its errors in the same way calls wrapError by defer.
func wrapError(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}

// fullFor is the time for which the ledger counts as full after a refused write. It is longer than the interval of the background writes.
const fullFor = 15 * time.Second

// fullDisk stores when the disk last refused a write. A later success does not reset this time, because small rows may fit into the pages
// of a full disk.
type fullDisk struct{ refusedAt atomic.Pointer[time.Time] }

// recordDiskFull returns writeErr, the error of a write. If writeErr means that the disk was full, recordDiskFull stores the time now and wraps
// writeErr with ErrDiskFull.
func (f *fullDisk) recordDiskFull(writeErr error, now time.Time) error {
	if !isDiskFull(writeErr) {
		return writeErr
	}
	f.refusedAt.Store(&now)
	return fmt.Errorf("%w: %w", ErrDiskFull, writeErr)
}

// checkNotFull returns ErrDiskFull if the disk refused a write less than fullFor ago.
func (f *fullDisk) checkNotFull(now time.Time) error {
	if at := f.refusedAt.Load(); at != nil && now.Sub(*at) < fullFor {
		return ErrDiskFull
	}
	return nil
}

func isDiskFull(err error) bool {
	if e, ok := errors.AsType[*pq.Error](err); ok {
		return e.Code == pqerror.DiskFull
	}
	return sqliteResultCode(err) == sqlite3.SQLITE_FULL
}

// isDamaged reports whether the error means that a file is not an SQLite database, or that the database is corrupt.
func isDamaged(err error) bool {
	code := sqliteResultCode(err)
	return code == sqlite3.SQLITE_NOTADB || code == sqlite3.SQLITE_CORRUPT
}

// sqliteResultCode returns the primary result code of an SQLite error. It returns 0 for any other error.
func sqliteResultCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// sqliteFileError adds the name of the file to an SQLite error, and a remedy if the file is damaged.
func sqliteFileError(path string, cause error) error {
	switch {
	case cause == nil:
		return nil
	case isDamaged(cause):
		return fmt.Errorf("the ledger %s is damaged (%w): %s", path, cause, remedyOfDamage)
	}
	return fmt.Errorf("opening %s: %w", path, cause)
}

const remedyOfDamage = "restore it from a backup; or, to start with an empty ledger, move it away together with its files -wal and -shm"

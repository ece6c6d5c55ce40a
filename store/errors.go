package store

import "errors"

var (
	// ErrNotFound: no row of that name or number.
	ErrNotFound = errors.New("not found")
	// ErrExists: a row of that name is there already.
	ErrExists = errors.New("already exists")
	// ErrUnknownPool: a batch names a pool that does not exist.
	ErrUnknownPool = errors.New("unknown pool")
	// ErrUnknownDevice: a batch names a device that is not registered, and was
	// asked to refuse those.
	ErrUnknownDevice = errors.New("unknown device")
	// ErrUnknownProfile: a device is given a profile that does not exist.
	ErrUnknownProfile = errors.New("unknown profile")
	// ErrInUse: a profile that devices have is not deleted.
	ErrInUse = errors.New("in use")
	// ErrNotRetriable: the task succeeded, its batch was cancelled, its time is over, or it is the lease of a caller.
	ErrNotRetriable = errors.New("cannot be tried again")
	// ErrNoTasks: a batch of none.
	ErrNoTasks = errors.New("no tasks")
	// ErrInProgress: a request with the same idempotency key is under way.
	ErrInProgress = errors.New("in progress")
	// ErrKeyReused: another request had the same idempotency key.
	ErrKeyReused = errors.New("idempotency key of another request")
	// ErrOpenTasks: a device or pool that has open tasks is not deleted.
	ErrOpenTasks = errors.New("has open tasks")
	// ErrNeverStarts: the windows of a batch and of its pool are never open
	// together for longer than its lease.
	ErrNeverStarts = errors.New("nothing would ever start: no opening is longer than the lease")
	// ErrTooLarge: a device's attributes would exceed their limits.
	ErrTooLarge = errors.New("too large")
	// ErrDiskFull: the disk of the database has no room for what was to be written.
	ErrDiskFull = errors.New("the disk of the ledger is full")
	// ErrOutcomeUnknown: the COMMIT was sent, its answer never came. The
	// change may or may not be in force.
	ErrOutcomeUnknown = errors.New("outcome of commit unknown")
)

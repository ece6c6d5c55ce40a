package store

import "errors"

var (
	// ErrNotFound: no row of that name or number.
	ErrNotFound = errors.New("not found")
	// ErrExists: a row of that name is there already.
	ErrExists = errors.New("already exists")
	// ErrUnknownPool: a batch names a pool that does not exist.
	ErrUnknownPool = errors.New("unknown pool")
	// ErrTooLarge: a device's attributes would exceed their limits.
	ErrTooLarge = errors.New("too large")
	// ErrOutcomeUnknown: the COMMIT was sent, its answer never came. The
	// change may or may not be in force.
	ErrOutcomeUnknown = errors.New("outcome of commit unknown")
)

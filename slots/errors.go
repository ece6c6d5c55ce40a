package slots

import "errors"

var (
	// ErrUnavailable says that Redis gave no answer (network, timeout, saturated
	// pool), or one that refuses to work (loading, read-only, cluster down, out
	// of memory, no permission). The call may or may not have taken effect.
	ErrUnavailable = errors.New("semaphore unavailable")
	// ErrUnknownPool says that Redis does not know the pool; it needs Restore.
	ErrUnknownPool = errors.New("pool unknown to the semaphore")
	// ErrInvalid says that an argument is out of range; nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

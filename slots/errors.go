package slots

import "errors"

var (
	// ErrUnavailable reports that Redis sent no reply (network, timeout, exhausted connection
	// pool), an error (loading, read-only, cluster down, out of memory, no permission) or a reply
	// that cannot be decoded. The call may or may not have taken effect.
	ErrUnavailable = errors.New("semaphore unavailable")
	// ErrUnknownPool reports that Redis does not know the pool. The pool needs Restore.
	ErrUnknownPool = errors.New("the semaphore does not know the pool")
	// ErrInvalid reports that an argument is out of range. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

package operators

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// A request is sent again after a pause that doubles, up to longestPause.
const (
	defaultTries = 6
	firstPause   = 500 * time.Millisecond
	longestPause = 8 * time.Second
)

// LostError says that there is no answer.
type LostError struct {
	URL     string // of the server
	Err     error
	Reached bool // there was a connection: the server may have done what was asked
	Reads   bool // what was asked changes nothing
}

// Error names the server, and why.
func (e *LostError) Error() string { return "no answer from " + e.URL + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *LostError) Unwrap() error { return e.Err }

// brokenError ends a download of which a part has been written.
type brokenError struct{ error }

// again sends what may be sent again until it is answered: what only reads,
// and what has a key under which the server does it once.
func (c *Client) again(ctx context.Context, r Request, send func() error) error {
	tries := c.config.Tries
	if tries == 0 {
		tries = defaultTries
	}
	if r.Once || r.Method != http.MethodGet && r.Key == "" {
		tries = 1
	}
	pause := firstPause
	for n := 1; ; n++ {
		err := send()
		wait, lost := sendAgain(err, pause, n)
		if !lost || n >= tries {
			return err
		}
		if c.config.Notice != nil {
			c.config.Notice(err, wait)
		}
		if err := Pause(ctx, wait); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// sendAgain says whether and when. Where no server is at the first try, there
// is none; later it may be starting again.
func sendAgain(err error, pause time.Duration, n int) (time.Duration, bool) {
	if lost, ok := errors.AsType[*LostError](err); ok {
		return pause, lost.Reached || n > 1
	}
	if p, ok := errors.AsType[*Problem](err); ok && p.transient() {
		return min(max(pause, p.After), longestPause), true
	}
	return 0, false
}

// Lost says that the server may have done what was asked, and its answer, or a
// part of it, did not arrive.
func Lost(err error) bool {
	if _, ok := errors.AsType[*brokenError](err); ok {
		return true
	}
	lost, ok := errors.AsType[*LostError](err)
	return ok && lost.Reached
}

// Transient says whether a reading that failed so may succeed later.
func Transient(err error) bool {
	if _, ok := errors.AsType[*LostError](err); ok {
		return true
	}
	p, ok := errors.AsType[*Problem](err)
	return ok && p.transient()
}

// Pause waits, or returns why it does not.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

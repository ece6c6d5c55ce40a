package app

import (
	"context"
	"time"
)

const (
	lapseLook  = time.Second           // how often the next end of a lease is looked for: no lease is much shorter
	lapseSlack = 50 * time.Millisecond // after it: what ends in that time is taken back together
)

// onTime runs the reaper just after a lease has ended, so that its slot does
// not stand empty until the pass comes by. It adds nothing to what a pass may do,
// and the pass finds whatever is missed here.
func (p *passes) onTime(ctx context.Context, reap *pass, next func(context.Context) (left time.Duration, found bool, err error)) {
	for {
		wait, ends := untilLapse(ctx, next)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if ends {
			p.attempt(reap) //nolint:contextcheck // as cron does
		}
	}
}

// untilLapse is when to look again, and whether a lease will have ended by then. The
// passes log a ledger that does not answer.
func untilLapse(ctx context.Context, next func(context.Context) (left time.Duration, found bool, err error)) (wait time.Duration, ends bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	left, found, err := next(ctx)
	if err != nil || !found {
		return lapseLook, false
	}
	return waitFor(left)
}

// waitFor is how long to wait for the end of a lease. One that ended a while ago is still
// there because Reap did not trust the ledger's clock at the time: a reading took
// long, or the clock stepped.
func waitFor(left time.Duration) (wait time.Duration, ends bool) {
	switch {
	case left > lapseLook:
		return lapseLook, false
	case left < -lapseSlack:
		return lapseLook, true
	}
	return max(left, 0) + lapseSlack, true
}

package dispatcher

import (
	"sync"
	"time"
)

// clockSlack is how far the ledger's clock may run ahead of our own elapsed
// time before it is doubted.
const clockSlack = time.Second

// clockGuard believes the ledger's clock only as far as this process'
// monotonic clock agrees, so that a clock that steps forward takes no lease
// away early.
//
// A step forward is doubted for the longest lease: by then every lease given
// before the step has run out in real time, and the new clock is taken over.
// Leases given after the step end by the new clock, which is believed again
// when the first of them can end. A step back frees nobody early and is
// followed at once.
type clockGuard struct {
	mu      sync.Mutex
	started bool
	reading time.Time     // the last one that was believed
	at      time.Time     // our own clock just after it
	loose   time.Duration // how long it was on its way: so old it may have been by then
	doubted time.Time     // our own clock when the doubt began; zero: none
}

// believe returns how far the reading may be trusted. asked and answered are
// this process' clock, with its monotonic part, around the reading: the elapsed
// time between two readings is measured short, never long. longest is the
// longest lease of any pool or grant.
//
// A reading that was long on its way is allowed for, so that a slow ledger does
// not look like a clock that stepped.
func (g *clockGuard) believe(reading, asked, answered time.Time, longest time.Duration) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := g.reading.Add(asked.Sub(g.at) + g.loose + clockSlack)
	if !g.started || !reading.After(limit) {
		g.follow(reading, asked, answered)
		return reading
	}
	if g.doubted.IsZero() {
		g.doubted = asked
	}
	if asked.Sub(g.doubted) >= longest {
		g.follow(reading, asked, answered)
		return reading
	}
	return limit
}

func (g *clockGuard) follow(reading, asked, answered time.Time) {
	g.started, g.doubted = true, time.Time{}
	g.reading, g.at, g.loose = reading, answered, answered.Sub(asked)
}

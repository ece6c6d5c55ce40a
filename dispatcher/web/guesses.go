package web

import (
	"net/netip"
	"sync"
	"time"
)

// After mostGuesses wrong tokens from one address within guessSpan, that
// address cannot sign in for lockedOut.
const (
	mostGuesses = 10
	guessSpan   = 10 * time.Minute
	lockedOut   = 10 * time.Minute
	mostGuests  = 10_000 // addresses that are remembered
)

// guesses counts wrong tokens by address, in this replica.
type guesses struct {
	now func() time.Time

	mu sync.Mutex
	of map[netip.Prefix]*guess
}

type guess struct {
	wrong int
	since time.Time
	until time.Time // locked out; zero: not
}

func newGuesses(now func() time.Time) *guesses {
	return &guesses{now: now, of: map[netip.Prefix]*guess{}}
}

// network is what one guesser has many addresses of: of IPv6, a /64.
func network(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	prefix, _ := a.Prefix(bits) // none of no address
	return prefix
}

// wait is how long the address must not try; 0: it may.
func (g *guesses) wait(from netip.Addr) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.of[network(from)]; one != nil {
		return max(0, one.until.Sub(g.now()))
	}
	return 0
}

// wrong notes a token that nobody has.
func (g *guesses) wrong(from netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if len(g.of) >= mostGuests {
		g.forget(now)
	}
	key := network(from)
	one := g.of[key]
	if one == nil || now.Sub(one.since) > guessSpan {
		one = &guess{since: now}
		g.of[key] = one
	}
	if one.wrong++; one.wrong >= mostGuesses {
		one.until, one.wrong, one.since = now.Add(lockedOut), 0, now
	}
}

// forget makes room: first those who are over, then anybody.
func (g *guesses) forget(now time.Time) {
	for key, one := range g.of {
		if now.Sub(one.since) > guessSpan && now.After(one.until) {
			delete(g.of, key)
		}
	}
	for key := range g.of {
		if len(g.of) < mostGuests {
			return
		}
		delete(g.of, key)
	}
}

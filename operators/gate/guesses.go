package gate

import (
	"crypto/sha256"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// After mostGuesses wrong tokens from one address within guessSpan, the address is locked out for the time lockedOut.
const (
	mostGuesses = 10
	guessSpan   = 10 * time.Minute
	lockedOut   = 10 * time.Minute
	goodFor     = time.Hour // how long an accepted token stays usable from its address during a lock-out
	mostGuests  = 10_000    // maximum number of remembered addresses, and of remembered good tokens
)

// guesses counts wrong tokens by address, in this replica.
type guesses struct {
	now  func() time.Time
	most int

	mu   sync.Mutex
	of   map[netip.Prefix]*guess
	good map[goodToken]time.Time // time when the token was last accepted
}

// goodToken is a token that was accepted from an address. It stays usable from that address during a lock-out: a guesser
// in a network must not block the other clients there.
type goodToken struct {
	from netip.Prefix
	hash [sha256.Size]byte
}

type guess struct {
	wrong int
	since time.Time
	until time.Time // end of the lock-out; the zero time means that the address is not locked out
}

func newGuesses(now func() time.Time, most int) *guesses {
	return &guesses{now: now, most: most, of: map[netip.Prefix]*guess{}, good: map[goodToken]time.Time{}}
}

// network returns the range in which one guesser may own many addresses: for IPv6 a /64, for IPv4 the address itself.
func network(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	prefix, _ := a.Prefix(bits) // the zero Prefix for an invalid address
	return prefix
}

// wait returns how long the address must not try this token. If it is 0, the address may try the token now.
func (g *guesses) wait(from netip.Addr, token string) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.of[network(from)]
	if one == nil {
		return 0
	}
	wait := max(0, one.until.Sub(g.now()))
	if wait > 0 && g.now().Sub(g.good[goodToken{network(from), sha256.Sum256([]byte(token))}]) < goodFor {
		return 0
	}
	return wait
}

// accepted records that a token was accepted from this address.
func (g *guesses) accepted(from netip.Addr, token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.good) >= mostGuests {
		clear(g.good)
	}
	g.good[goodToken{network(from), sha256.Sum256([]byte(token))}] = g.now()
}

// wrong counts an unknown token, and reports whether it locks the address out.
func (g *guesses) wrong(from netip.Addr) bool {
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
	one.wrong++
	if one.wrong < g.most {
		return false
	}
	one.until, one.wrong, one.since = now.Add(lockedOut), 0, now
	return true
}

// forget removes expired entries, then any entries until there is room for one more.
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

// client returns the address that a request came from: the address that a trusted proxy forwards, otherwise the address of
// the peer. X-Forwarded-For is read from its end, where the nearest proxy writes. Entries that a client forged come
// earlier in the list and are never reached.
func client(r *http.Request, trusted []netip.Prefix) netip.Addr {
	at := address(r.RemoteAddr)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		from := address(strings.TrimSpace(hop))
		if !contains(trusted, at) || !from.IsValid() {
			return at
		}
		at = from
	}
	return at
}

// Proxied reports whether the request came through a proxy that is not trusted to forward client addresses. All clients
// behind such a proxy count as one.
func (g *Gate) Proxied(r *http.Request) bool {
	return r.Header.Get("X-Forwarded-For") != "" && g.From(r) == address(r.RemoteAddr)
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// address parses an address with or without a port. If text is not an address, the result is invalid.
func address(text string) netip.Addr {
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		withPort, _ := netip.ParseAddrPort(text) // ParseAddrPort returns an invalid address on an error
		a = withPort.Addr()
	}
	return a.Unmap().WithZone("")
}

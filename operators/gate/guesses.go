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

// After mostGuesses wrong tokens from one address within guessSpan, that
// address is locked out for lockedOut.
const (
	mostGuesses = 10
	guessSpan   = 10 * time.Minute
	lockedOut   = 10 * time.Minute
	goodFor     = time.Hour // a token that was accepted from there goes on
	mostGuests  = 10_000    // addresses that are remembered, and good tokens
)

// guesses counts wrong tokens by address, in this replica.
type guesses struct {
	now  func() time.Time
	most int

	mu   sync.Mutex
	of   map[netip.Prefix]*guess
	good map[goodToken]time.Time // when it was last accepted
}

// goodToken was accepted from an address. It stays valid there while others are locked
// out: a guesser in a network must not stop the other callers there.
type goodToken struct {
	from netip.Prefix
	hash [sha256.Size]byte
}

type guess struct {
	wrong int
	since time.Time
	until time.Time // locked out; zero: not
}

func newGuesses(now func() time.Time, most int) *guesses {
	return &guesses{now: now, most: most, of: map[netip.Prefix]*guess{}, good: map[goodToken]time.Time{}}
}

// network is the range in which one guesser has many addresses: of IPv6, a /64.
func network(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	prefix, _ := a.Prefix(bits) // none of no address
	return prefix
}

// wait is how long the address must not try that token; 0: it may try now.
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

// accepted notes a token that was accepted.
func (g *guesses) accepted(from netip.Addr, token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.good) >= mostGuests {
		clear(g.good)
	}
	g.good[goodToken{network(from), sha256.Sum256([]byte(token))}] = g.now()
}

// wrong notes an unknown token, and says whether it locks the address out.
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

// forget makes room: expired entries first, then any.
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

// client is the address that a request came from: the one that a trusted proxy
// forwards, otherwise the peer's own. The list is read from its end, where the
// nearest proxy writes; entries that a client wrote itself come before and are
// never reached.
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

// Proxied says that an address belongs to a proxy that is not trusted to forward
// client addresses: all clients behind it count as one.
func (g *Gate) Proxied(r *http.Request) bool {
	return r.Header.Get("X-Forwarded-For") != "" && g.From(r) == address(r.RemoteAddr)
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// address reads one with or without a port; invalid: not an address.
func address(text string) netip.Addr {
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		withPort, _ := netip.ParseAddrPort(text) // invalid if it is none
		a = withPort.Addr()
	}
	return a.Unmap().WithZone("")
}

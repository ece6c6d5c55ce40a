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

// After maxGuesses wrong tokens from one address within guessSpan, the address is locked out for the time lockoutTime. lockoutTime
// must not be longer than guessSpan: recordWrong replaces an entry that is older than guessSpan, and with it the lock-out.
const (
	maxGuesses    = 10
	guessSpan     = 10 * time.Minute
	lockoutTime   = 10 * time.Minute
	acceptedFor   = time.Hour // how long an accepted token stays usable from its address during a lock-out
	maxRemembered = 10_000    // maximum number of remembered addresses, and of remembered good tokens
)

// guessCounter counts wrong tokens by address, in this replica.
type guessCounter struct {
	now      func() time.Time
	maxWrong int

	mu         sync.Mutex
	byNetwork  map[netip.Prefix]*wrongTokens
	acceptedAt map[acceptedToken]time.Time // time when the token was last accepted
}

// acceptedToken is a token that was accepted from an address. It stays usable from that address during a lock-out: a guesser
// in a network must not block the other clients there.
type acceptedToken struct {
	from netip.Prefix
	hash [sha256.Size]byte
}

// wrongTokens counts the wrong tokens from one address.
type wrongTokens struct {
	count       int       // wrong tokens since the time since
	since       time.Time // time of the first wrong token, or of the latest lock-out
	lockedUntil time.Time // end of the lock-out; the zero time means that the address is not locked out
}

// newGuessCounter returns a counter that locks an address out after maxWrong wrong tokens.
func newGuessCounter(now func() time.Time, maxWrong int) *guessCounter {
	return &guessCounter{now: now, maxWrong: maxWrong, byNetwork: map[netip.Prefix]*wrongTokens{}, acceptedAt: map[acceptedToken]time.Time{}}
}

// guesserNetwork returns the range, around address, in which one guesser may own many addresses: for IPv6 a /64, for IPv4 the address
// itself.
func guesserNetwork(address netip.Addr) netip.Prefix {
	bits := 32
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits) // the zero Prefix for an invalid address
	return prefix
}

// lockoutLeft returns how long the address must not try this token. If it is 0, the address may try the token now.
func (g *guessCounter) lockoutLeft(address netip.Addr, token string) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.byNetwork[guesserNetwork(address)]
	if one == nil {
		return 0
	}
	wait := max(0, one.lockedUntil.Sub(g.now()))
	if wait > 0 && g.now().Sub(g.acceptedAt[acceptedToken{guesserNetwork(address), sha256.Sum256([]byte(token))}]) < acceptedFor {
		return 0
	}
	return wait
}

// recordAccepted records that a token was accepted from address.
func (g *guessCounter) recordAccepted(address netip.Addr, token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.acceptedAt) >= maxRemembered {
		clear(g.acceptedAt)
	}
	g.acceptedAt[acceptedToken{guesserNetwork(address), sha256.Sum256([]byte(token))}] = g.now()
}

// recordWrong counts an unknown token from address, and reports whether it locks the address out.
func (g *guessCounter) recordWrong(address netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if len(g.byNetwork) >= maxRemembered {
		g.makeRoom(now)
	}
	key := guesserNetwork(address)
	one := g.byNetwork[key]
	if one == nil || now.Sub(one.since) > guessSpan {
		one = &wrongTokens{since: now}
		g.byNetwork[key] = one
	}
	one.count++
	if one.count < g.maxWrong {
		return false
	}
	one.lockedUntil, one.count, one.since = now.Add(lockoutTime), 0, now
	return true
}

// makeRoom removes expired entries, then any entries, even of locked-out addresses, until there is room for one more.
func (g *guessCounter) makeRoom(now time.Time) {
	for key, one := range g.byNetwork {
		if now.Sub(one.since) > guessSpan && now.After(one.lockedUntil) {
			delete(g.byNetwork, key)
		}
	}
	for key := range g.byNetwork {
		if len(g.byNetwork) < maxRemembered {
			return
		}
		delete(g.byNetwork, key)
	}
}

// clientAddress returns the address that a request came from: the address that one of trustedProxies forwards, otherwise the address of
// the peer. X-Forwarded-For is read from its end, where the nearest proxy writes. Entries that a client forged come earlier in the list
// and are never reached.
func clientAddress(r *http.Request, trustedProxies []netip.Prefix) netip.Addr {
	current := parseAddress(r.RemoteAddr)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		forwarded := parseAddress(strings.TrimSpace(hop))
		if !anyContains(trustedProxies, current) || !forwarded.IsValid() {
			return current
		}
		current = forwarded
	}
	return current
}

// IsProxied reports whether the request came through a proxy that is not trusted to forward client addresses. All clients behind such a
// proxy count as one.
func (g *Gate) IsProxied(r *http.Request) bool {
	return r.Header.Get("X-Forwarded-For") != "" && g.ClientAddress(r) == parseAddress(r.RemoteAddr)
}

// anyContains reports whether one of networks contains address.
func anyContains(networks []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(address) })
}

// parseAddress parses an address with or without a port. If text is not an address, the result is invalid.
func parseAddress(text string) netip.Addr {
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		withPort, _ := netip.ParseAddrPort(text) // ParseAddrPort returns an invalid address on an error
		a = withPort.Addr()
	}
	return a.Unmap().WithZone("")
}

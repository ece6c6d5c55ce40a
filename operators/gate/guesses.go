package gate

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// After maxGuesses wrong tokens with one guesserKey within guessSpan, the key is locked out for the time lockoutTime.
const (
	maxGuesses    = 10
	guessSpan     = 10 * time.Minute
	lockoutTime   = 10 * time.Minute
	acceptedFor   = time.Hour // how long an accepted token stays usable from its address during a lock-out
	maxRemembered = 10_000    // maximum number of remembered addresses, and of remembered good tokens
)

// guessCounter counts wrong tokens by guesserKey, in this replica.
type guessCounter struct {
	now      func() time.Time
	maxWrong int

	mu         sync.Mutex
	byKey      map[guesserKey]*guesser
	acceptedAt map[acceptedToken]time.Time // time when the token was last accepted
}

// guesserKey identifies one unit of a lock-out: an address or, for tokens of devices, one device at an address. Many devices can share one
// address, so wrong tokens of one device must not lock out the others.
type guesserKey struct {
	network netip.Prefix
	device  string // empty for tokens of operators
}

// acceptedToken is a token that was accepted from an address. It stays usable from that address during a lock-out: a guesser in a network
// must not block the other clients in this network.
type acceptedToken struct {
	from netip.Prefix
	hash [sha256.Size]byte
}

// guesser is the state of a guesserKey: its wrong tokens, its lock-out, and the look-ups of its tokens.
type guesser struct {
	turn        chan struct{} // holds one element while a token is being looked up, so that one token is looked up at a time
	users       int           // number of tokens that are being looked up or wait for their look-up
	count       int           // number of wrong tokens after the time in `since`
	since       time.Time     // time of the first wrong token, or of the latest lock-out
	lockedUntil time.Time     // end of the lock-out; the zero time means that the address is not locked out
}

// newGuessCounter returns a counter that locks a guesserKey out after maxWrong wrong tokens.
func newGuessCounter(now func() time.Time, maxWrong int) *guessCounter {
	return &guessCounter{now: now, maxWrong: maxWrong, byKey: map[guesserKey]*guesser{}, acceptedAt: map[acceptedToken]time.Time{}}
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

// isAccepted reports whether the token was accepted from network recently.
func (g *guessCounter) isAccepted(network netip.Prefix, token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.acceptedAt[acceptedToken{network, sha256.Sum256([]byte(token))}]
	return ok && g.now().Sub(at) < acceptedFor
}

func (g *guessCounter) recordAccepted(network netip.Prefix, token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.acceptedAt) >= maxRemembered {
		clear(g.acceptedAt)
	}
	g.acceptedAt[acceptedToken{network, sha256.Sum256([]byte(token))}] = g.now()
}

// beginTokenLookUp waits until no other token of key is being looked up, and returns the state of key. The caller then looks its token up,
// and calls endTokenLookUp. If key is locked out, state is nil and lockout is the remaining time. If ctx ends first, state is nil and err
// is the error of ctx.
func (g *guessCounter) beginTokenLookUp(ctx context.Context, key guesserKey) (state *guesser, lockout time.Duration, err error) {
	state = g.acquireGuesser(key)
	select {
	case state.turn <- struct{}{}:
	case <-ctx.Done():
		g.releaseGuesser(key, state)
		return nil, 0, ctx.Err()
	}
	g.mu.Lock()
	lockout = max(0, state.lockedUntil.Sub(g.now()))
	g.mu.Unlock()
	if lockout > 0 {
		<-state.turn
		g.releaseGuesser(key, state)
		return nil, lockout, nil
	}
	return state, 0, nil
}

// endTokenLookUp ends the look-up of a token of key. state is the result of beginTokenLookUp. If isWrong is true, endTokenLookUp counts a
// wrong token. isLockedOut reports whether this token locks key out.
func (g *guessCounter) endTokenLookUp(key guesserKey, state *guesser, isWrong bool) (isLockedOut bool) {
	defer g.releaseGuesser(key, state)
	defer func() { <-state.turn }()
	if !isWrong {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if state.count == 0 || now.Sub(state.since) > guessSpan {
		state.count, state.since = 0, now
	}
	state.count++
	if state.count < g.maxWrong {
		return false
	}
	state.lockedUntil, state.count, state.since = now.Add(lockoutTime), 0, now
	return true
}

// acquireGuesser returns the guesser of key. The caller must call releaseGuesser.
func (g *guessCounter) acquireGuesser(key guesserKey) *guesser {
	g.mu.Lock()
	defer g.mu.Unlock()
	state := g.byKey[key]
	if state == nil {
		g.evictGuessers()
		state = &guesser{turn: make(chan struct{}, 1)}
		g.byKey[key] = state
	}
	state.users++
	return state
}

// releaseGuesser ends a use of state, the guesser of key. If no other caller uses state, and no wrong token of key counts, it deletes
// state.
func (g *guessCounter) releaseGuesser(key guesserKey, state *guesser) {
	g.mu.Lock()
	defer g.mu.Unlock()
	state.users--
	if state.users == 0 && state.isHarmless(g.now()) && g.byKey[key] == state {
		delete(g.byKey, key)
	}
}

// isHarmless reports whether the guesser has no wrong tokens that still count, and no lock-out.
func (o *guesser) isHarmless(now time.Time) bool {
	return !now.Before(o.lockedUntil) && (o.count == 0 || now.Sub(o.since) > guessSpan)
}

// evictGuessers removes guessers if maxRemembered of them are stored: first the harmless guessers, then those that are not locked out, then
// any. It removes a tenth of all guessers in one call, because each call reads the whole map.
func (g *guessCounter) evictGuessers() {
	if len(g.byKey) < maxRemembered {
		return
	}
	now := g.now()
	for _, mayRemove := range []func(*guesser) bool{
		func(o *guesser) bool { return o.users == 0 && o.isHarmless(now) },
		func(o *guesser) bool { return o.users == 0 && !now.Before(o.lockedUntil) },
		func(*guesser) bool { return true },
	} {
		for key, one := range g.byKey {
			if len(g.byKey) <= maxRemembered-maxRemembered/10 {
				return
			}
			if mayRemove(one) {
				delete(g.byKey, key)
			}
		}
	}
}

// clientAddress returns the address that a request came from. If the peer is one of trustedProxies, this is the address that the proxy
// forwards. Otherwise it is the address of the peer. X-Forwarded-For is read from its end, where the nearest proxy writes. Entries that a
// client forged come earlier in the list and are never reached.
func clientAddress(r *http.Request, trustedProxies []netip.Prefix) netip.Addr {
	current := parseAddress(r.RemoteAddr)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		forwarded := parseAddress(strings.TrimSpace(hop))
		if !anyNetworkContains(trustedProxies, current) || !forwarded.IsValid() {
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

// CameThroughProxy reports whether a trusted proxy sent the request. Only then the X-Forwarded headers of the request are trusted.
func (g *Gate) CameThroughProxy(r *http.Request) bool {
	return anyNetworkContains(g.options.Proxies, parseAddress(r.RemoteAddr))
}

func anyNetworkContains(networks []netip.Prefix, address netip.Addr) bool {
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

package credentials

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// known is what this replica remembers of who may act: it spares the ledger a look-up per
// report. Only valid tokens are kept. Changed ones are read so often, and dropped, that a
// revoked token dies on every replica; while they cannot be read no token is believed.
//
// There are many devices, so an admission takes 24 bytes and has no pointers. Devices and
// callers are keyed hashes: another token is taken for the device's once in 2^64 times.
type known struct {
	source tokenLedger
	now    func() time.Time
	seed   maphash.Seed
	most   int // devices that are kept; beyond it any one is forgotten: a bound, not a policy

	mu      sync.Mutex
	tokens  map[[sha256.Size]byte]knownToken // that were looked up lately
	devices map[uint64]admission
	read    time.Time // when the last reading of changes began; zero: none
	ledger  time.Time // the ledger's time then, or a little later
	next    int64     // where the next one begins
	drops   int       // how often tokens were dropped
}

type knownToken struct {
	store.Token
	until uint32
}

// admission is who acted last for a device.
type admission struct {
	caller uint64
	until  uint32 // its token is valid; 0: it bears none
	stands bool   // it was admitted, and there is no more to note of that
	reach  int8   // as it was marked then
}

const (
	tokenMemory = 24 * time.Hour
	mostUnread  = time.Hour       // between two readings of changes: below the time that the ledger keeps them
	believed    = 3 * time.Second // since the last reading of changes
	tokensKept  = 1_000           // mostly of operators; a bound, too
	devicesKept = 1_600_000       // soon above this the map takes twice the memory, 105 MB
)

func newKnown(source tokenLedger, now func() time.Time) *known {
	return &known{
		source: source, now: now, seed: maphash.MakeSeed(), most: devicesKept,
		tokens: make(map[[sha256.Size]byte]knownToken), devices: make(map[uint64]admission),
	}
}

// token returns a token that is known to be valid.
func (k *known) token(hash [sha256.Size]byte) (t store.Token, ok bool, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.tokens[hash]
	return e.Token, k.valid(e.until), k.drops
}

// find returns the token with a hash from memory, or else from the ledger.
func (k *known) find(ctx context.Context, hash [sha256.Size]byte) (store.Token, error) {
	t, ok, drops := k.token(hash)
	if ok {
		return t, nil
	}
	t, err := k.lookUp(ctx, hash)
	if err == nil {
		k.keep(hash, t, drops)
	}
	return t, err
}

// lookUp returns the token with a hash from the ledger. It returns devices.ErrUnauthenticated if there is none.
func (k *known) lookUp(ctx context.Context, hash [sha256.Size]byte) (store.Token, error) {
	t, err := k.source.TokenByHash(ctx, hash[:])
	if errors.Is(err, store.ErrNotFound) {
		return store.Token{}, devices.ErrUnauthenticated
	}
	if err != nil {
		return store.Token{}, fmt.Errorf("%w: looking up a token: %w", devices.ErrUnavailable, err)
	}
	return t, nil
}

// bearsInLedger checks in the ledger that the caller's token is its device's.
func (k *known) bearsInLedger(ctx context.Context, caller devices.Caller) error {
	t, err := k.lookUp(ctx, caller.Token)
	return owns(caller, t, err)
}

// bears is whether the caller is known to bear a valid token of its device.
func (k *known) bears(c devices.Caller) (ok bool, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, e := k.last(c)
	return k.valid(e.until), k.drops
}

// admitted is whether the caller was the last that was admitted for its device, and how the
// device could be told then.
func (k *known) admitted(c devices.Caller) (store.Reach, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, e := k.last(c)
	return store.Reach(e.reach), e.stands
}

// last is what is kept of a caller, if it acted last for its device.
func (k *known) last(c devices.Caller) (key uint64, e admission) {
	key = k.keyOf(string(c.Device))
	caller := maphash.Comparable(k.seed, c)
	if e = k.devices[key]; e.caller != caller {
		e = admission{caller: caller}
	}
	return key, e
}

func (k *known) keyOf(device string) uint64 { return maphash.String(k.seed, device) }

// valid is whether it is still before a second of the ledger's clock.
func (k *known) valid(until uint32) bool {
	since := k.now().Sub(k.read)
	return since < believed && k.ledger.Add(since).Unix() < int64(until)
}

// until is for how long a token is kept that is valid now.
func (k *known) until(t store.Token) uint32 {
	until := k.ledger.Add(tokenMemory)
	if t.ExpiresAt != nil && t.ExpiresAt.Before(until) {
		until = *t.ExpiresAt
	}
	return uint32(until.Unix()) //nolint:gosec // until 2106
}

// keep keeps what was looked up, unless tokens were dropped since: this may be one.
func (k *known) keep(hash [sha256.Size]byte, t store.Token, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if drops == k.drops {
		put(k.tokens, tokensKept, hash, knownToken{t, k.until(t)})
	}
}

// bore keeps that the caller bears a token of its device.
func (k *known) bore(c devices.Caller, t store.Token, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if drops == k.drops {
		key, e := k.last(c)
		e.until = k.until(t)
		put(k.devices, k.most, key, e)
	}
}

// admit keeps that the caller was admitted.
func (k *known) admit(c devices.Caller, reach store.Reach) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, e := k.last(c)
	e.stands, e.reach = true, int8(reach) //nolint:gosec // there are three
	put(k.devices, k.most, key, e)
}

// put puts an entry into a map, and another one out that has no room for it.
func put[K comparable, V any](all map[K]V, most int, key K, e V) {
	all[key] = e
	for len(all) > most {
		for other := range all {
			delete(all, other)
			break
		}
	}
}

// doubt lets the next report of a device be looked at; empty: of all devices.
func (k *known) doubt(device string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if device == "" {
		clear(k.devices)
	}
	key := k.keyOf(device)
	if e, is := k.devices[key]; is {
		e.stands = false
		k.devices[key] = e
	}
}

// forget drops the tokens of a device; other replicas read that they were changed.
func (k *known) forget(device devices.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drops++
	delete(k.devices, k.keyOf(string(device)))
	maps.DeleteFunc(k.tokens, func(_ [sha256.Size]byte, e knownToken) bool { return e.Device == string(device) })
}

func (k *known) nextReading() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.next
}

// changed drops tokens by a reading that began then. All are dropped if it cannot tell
// which: the one before is too long ago, or was of another ledger, which was ahead.
func (k *known) changed(begun time.Time, from int64, changes store.TokenChanges) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := changes.Next < from || changes.Now.Sub(k.ledger) > mostUnread
	for _, c := range changes.Tokens {
		if len(c.Hash) == sha256.Size {
			delete(k.tokens, [sha256.Size]byte(c.Hash))
			delete(k.devices, k.keyOf(c.Device))
		} else {
			all = true
		}
	}
	if all {
		clear(k.tokens)
		clear(k.devices)
	}
	if all || len(changes.Tokens) > 0 {
		k.drops++
	}
	k.read, k.ledger, k.next = begun, changes.Now, changes.Next
}

// FollowTokens drops from memory the tokens that were changed since it was called last,
// by whatever replica. The copies in memory are believed for some seconds after that.
func (r *Registry) FollowTokens(ctx context.Context) error {
	begun, from := r.known.now(), r.known.nextReading()
	changes, err := r.known.source.ChangedTokens(ctx, from)
	if err != nil {
		return fmt.Errorf("reading changed tokens: %w", err)
	}
	r.known.changed(begun, from, changes)
	return nil
}

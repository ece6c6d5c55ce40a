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

// known caches who may act for devices, which saves a query to the ledger for each report. It stores only
// valid tokens. Changed tokens are read frequently and dropped, so a revoked token is soon refused on every
// replica. While the changes cannot be read, no cached token is trusted.
//
// There are many devices, so an entry takes 24 bytes and has no pointers. Devices and callers are stored as
// keyed hashes: the probability that another token is accepted as the token of a device is 2^-64.
type known struct {
	source tokenLedger
	now    func() time.Time
	seed   maphash.Seed
	most   int // maximum number of devices; above it an arbitrary device is dropped, because this is only a memory limit

	mu      sync.Mutex
	tokens  map[[sha256.Size]byte]knownToken // tokens that were looked up recently
	devices map[uint64]admission
	read    time.Time // beginning of the last read of changes; the zero value means none
	ledger  time.Time // the ledger's time at that moment, or slightly later
	next    int64     // position from which the next read begins
	drops   int       // number of times that tokens were dropped
}

type knownToken struct {
	store.Token
	until uint32
}

// admission records who acted last for a device.
type admission struct {
	caller uint64
	until  uint32 // time until which its token is valid; 0 if the caller has no token
	stands bool   // it was admitted, and nothing remains to be recorded
	reach  int8   // the reach of the device at that time
}

const (
	tokenMemory = 24 * time.Hour
	mostUnread  = time.Hour       // maximum time between two reads of changes: less than the time that the ledger keeps the changes
	believed    = 3 * time.Second // maximum time since the last read of changes for which cached tokens are trusted
	tokensKept  = 1_000           // mostly tokens of operators; also a memory limit
	devicesKept = 1_600_000       // slightly above this number the map takes twice the memory, 105 MB
)

func newKnown(source tokenLedger, now func() time.Time) *known {
	return &known{
		source: source, now: now, seed: maphash.MakeSeed(), most: devicesKept,
		tokens: make(map[[sha256.Size]byte]knownToken), devices: make(map[uint64]admission),
	}
}

// token returns the cached token with a hash. ok reports whether it is known to be valid.
func (k *known) token(hash [sha256.Size]byte) (t store.Token, ok bool, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.tokens[hash]
	return e.Token, k.valid(e.until), k.drops
}

// find returns the token with a hash from the cache or, if it is not there, from the ledger.
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

// lookUp returns the token with a hash from the ledger. If it does not exist, lookUp returns
// devices.ErrUnauthenticated.
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

// bearsInLedger checks in the ledger that the caller's token belongs to its device.
func (k *known) bearsInLedger(ctx context.Context, caller devices.Caller) error {
	t, err := k.lookUp(ctx, caller.Token)
	return owns(caller, t, err)
}

// bears reports whether the cache knows that the caller has a valid token of its device.
func (k *known) bears(c devices.Caller) (ok bool, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, e := k.last(c)
	return k.valid(e.until), k.drops
}

// admitted reports whether the caller was the last one that was admitted for its device, and returns the
// reach of the device at that time.
func (k *known) admitted(c devices.Caller) (store.Reach, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, e := k.last(c)
	return store.Reach(e.reach), e.stands
}

// last returns the cached admission of a caller if it acted last for its device, and otherwise a new one.
func (k *known) last(c devices.Caller) (key uint64, e admission) {
	key = k.keyOf(string(c.Device))
	caller := maphash.Comparable(k.seed, c)
	if e = k.devices[key]; e.caller != caller {
		e = admission{caller: caller}
	}
	return key, e
}

func (k *known) keyOf(device string) uint64 { return maphash.String(k.seed, device) }

// valid reports whether the ledger's time is before until, in seconds since 1970. It returns false if the
// changes of tokens were not read recently.
func (k *known) valid(until uint32) bool {
	since := k.now().Sub(k.read)
	return since < believed && k.ledger.Add(since).Unix() < int64(until)
}

// until returns the time until which a token that is valid now is cached, in seconds since 1970.
func (k *known) until(t store.Token) uint32 {
	until := k.ledger.Add(tokenMemory)
	if t.ExpiresAt != nil && t.ExpiresAt.Before(until) {
		until = *t.ExpiresAt
	}
	return uint32(until.Unix()) //nolint:gosec // until 2106
}

// keep caches a token that was read from the ledger, unless tokens were dropped since: this token may be
// among them.
func (k *known) keep(hash [sha256.Size]byte, t store.Token, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if drops == k.drops {
		put(k.tokens, tokensKept, hash, knownToken{t, k.until(t)})
	}
}

// bore records that the caller has a valid token of its device, unless tokens were dropped since.
func (k *known) bore(c devices.Caller, t store.Token, drops int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if drops == k.drops {
		key, e := k.last(c)
		e.until = k.until(t)
		put(k.devices, k.most, key, e)
	}
}

// admit records that the caller was admitted.
func (k *known) admit(c devices.Caller, reach store.Reach) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, e := k.last(c)
	e.stands, e.reach = true, int8(reach) //nolint:gosec // there are three
	put(k.devices, k.most, key, e)
}

// put adds an entry to a map. If the map then has more than most entries, put removes arbitrary entries.
func put[K comparable, V any](all map[K]V, most int, key K, e V) {
	all[key] = e
	for len(all) > most {
		for other := range all {
			delete(all, other)
			break
		}
	}
}

// doubt removes the recorded admission of a device. If device is empty, it removes all admissions.
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

// forget drops the tokens of a device. Other replicas read the change of the tokens from the ledger.
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

// changed drops the tokens in changes, which were read from position `from`. begun is the time before the
// read. It drops all tokens if it cannot know which were changed: the last read was too long ago, a change
// has no hash, or the changes are from another ledger, whose position is lower.
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

// FollowTokens removes from the cache the tokens that any replica changed since the last call. The cache is
// trusted for some seconds after that.
func (r *Registry) FollowTokens(ctx context.Context) error {
	begun, from := r.known.now(), r.known.nextReading()
	changes, err := r.known.source.ChangedTokens(ctx, from)
	if err != nil {
		return fmt.Errorf("reading changed tokens: %w", err)
	}
	r.known.changed(begun, from, changes)
	return nil
}

package credentials

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// tokenCache caches valid tokens, and who may act for each device. It saves a query to the ledger for each report. It frequently reads which
// tokens were changed, and drops these tokens. While the changes cannot be read, no cached token is trusted.
//
// An entry of a device takes 24 bytes and has no pointers, because there are many devices. Devices and callers are stored as keyed hashes of
// 64 bits, so a wrong token is accepted for a device with a probability of 2^-64.
type tokenCache struct {
	source     tokenLedger
	now        func() time.Time
	seed       maphash.Seed
	maxDevices int // maximum number of devices; above it an arbitrary device is dropped, because this is only a memory limit

	mu         sync.Mutex
	tokens     map[[sha256.Size]byte]cachedToken // tokens that were looked up recently
	devices    map[uint64]lastActor
	read       time.Time // time at which the last read of changes began; the zero value means that there was no read
	ledgerTime time.Time // the ledger's time when the last read of changes began, or slightly later
	next       int64     // position in the changes of tokens from which the next read begins
	version    int       // changes each time tokens are dropped
}

// cachedToken is a token in the cache. Its field until is the time at which it is no longer trusted, in seconds since 1970.
type cachedToken struct {
	store.Token
	until uint32
}

// lastActor records which caller last acted for a device: the caller was admitted, or it sent a valid token of the device.
type lastActor struct {
	caller     uint64
	until      uint32 // time until which the token of the caller is trusted, in seconds since 1970; 0 if the caller has no token
	isAdmitted bool   // the caller was admitted, and nothing remains to be recorded
	isHawkbit  bool   // the caller was admitted over DDI; this admission does not count on other wires
	reach      int8   // how the device can be notified, as last recorded
}

const (
	tokenMemory = 24 * time.Hour
	maxReadGap  = time.Hour       // maximum time between two reads of changes: less than the time that the ledger keeps the changes
	trustedFor  = 3 * time.Second // maximum time since the last read of changes for which cached tokens are trusted
	tokensKept  = 1_000           // mostly tokens of operators; also a memory limit
	devicesKept = 1_600_000       // slightly above this number the map takes twice the memory, 105 MB
)

func newTokenCache(source tokenLedger, now func() time.Time) *tokenCache {
	return &tokenCache{
		source: source, now: now, seed: maphash.MakeSeed(), maxDevices: devicesKept,
		tokens: make(map[[sha256.Size]byte]cachedToken), devices: make(map[uint64]lastActor),
	}
}

// findCachedToken returns the cached token with this hash. isValid is true if the token is known to be valid. The caller passes cacheVersion
// to cacheToken.
func (k *tokenCache) findCachedToken(hash [sha256.Size]byte) (cached store.Token, isValid bool, cacheVersion int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.tokens[hash]
	return e.Token, k.isValidUntil(e.until), k.version
}

// findToken returns the token with this hash, from the ledger if the cache does not have it.
func (k *tokenCache) findToken(ctx context.Context, hash [sha256.Size]byte) (store.Token, error) {
	t, ok, drops := k.findCachedToken(hash)
	if ok {
		return t, nil
	}
	t, err := k.lookUpToken(ctx, hash)
	if err == nil {
		k.cacheToken(hash, t, drops)
	}
	return t, err
}

// lookUpToken reads the token with this hash from the ledger. It returns devices.ErrUnauthenticated if there is none.
func (k *tokenCache) lookUpToken(ctx context.Context, hash [sha256.Size]byte) (store.Token, error) {
	t, err := k.source.TokenByHash(ctx, hash[:])
	if errors.Is(err, store.ErrNotFound) {
		return store.Token{}, devices.ErrUnauthenticated
	}
	if err != nil {
		return store.Token{}, fmt.Errorf("%w: looking up a token: %w", devices.ErrUnavailable, err)
	}
	return t, nil
}

func (k *tokenCache) checkTokenInLedger(ctx context.Context, caller devices.Caller) error {
	t, err := k.lookUpToken(ctx, caller.Token)
	return checkTokenOwner(caller, t, err)
}

// hasValidToken reports whether the caller is known to have a valid token of its device. cacheVersion is an argument of
// cacheValidTokenOfCaller.
func (k *tokenCache) hasValidToken(caller devices.Caller) (isValid bool, cacheVersion int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, e := k.lastActorEntry(caller)
	return k.isValidUntil(e.until), k.version
}

// ReachAtAdmission returns how the caller's device could be notified of work when the caller was admitted. isLastAdmitted is false if another
// caller was admitted for the device later. The result is valid only while this replica calls ForgetAdmission for all news. So use it only with
// a trusted mark (marks.DeviceMark), or while the replica follows the news (marks.Follower.LedgerTime).
func (k *tokenCache) ReachAtAdmission(caller devices.Caller) (reach store.Reach, isLastAdmitted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, e := k.lastActorEntry(caller)
	return store.Reach(e.reach), e.isAdmitted && e.isHawkbit == (caller.Wire == devices.WireHawkbit)
}

// lastActorEntry returns the entry of the caller's device and its key, deviceHash. If another caller acted last for the device, the entry is
// new.
func (k *tokenCache) lastActorEntry(caller devices.Caller) (deviceHash uint64, actor lastActor) {
	deviceHash = k.hashOfDevice(string(caller.Device))
	caller.From, caller.Wire = netip.Addr{}, "" // the address of a device may change with each report, and its token is valid on each wire
	callerHash := maphash.Comparable(k.seed, caller)
	if actor = k.devices[deviceHash]; actor.caller != callerHash {
		actor = lastActor{caller: callerHash}
	}
	return deviceHash, actor
}

func (k *tokenCache) hashOfDevice(device string) uint64 { return maphash.String(k.seed, device) }

// isValidUntil reports whether a token that is cached until the time expiryUnix (seconds since 1970) can be trusted. This time must be in the
// future by the ledger's clock, and the changes of tokens must have been read recently.
func (k *tokenCache) isValidUntil(expiryUnix uint32) bool {
	since := k.now().Sub(k.read)
	return since < trustedFor && k.ledgerTime.Add(since).Unix() < int64(expiryUnix)
}

// cacheExpiry returns the time until which token is cached, in seconds since 1970.
func (k *tokenCache) cacheExpiry(token store.Token) (expiryUnix uint32) {
	end := k.ledgerTime.Add(tokenMemory)
	if token.ExpiresAt != nil && token.ExpiresAt.Before(end) {
		end = *token.ExpiresAt
	}
	return uint32(end.Unix()) // until 2106
}

// cacheToken caches token, unless tokens were dropped after token was read, because token may be one of them. versionBeforeRead is the
// cacheVersion before the read.
func (k *tokenCache) cacheToken(hash [sha256.Size]byte, token store.Token, versionBeforeRead int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if versionBeforeRead == k.version {
		putWithLimit(k.tokens, tokensKept, hash, cachedToken{token, k.cacheExpiry(token)})
	}
}

// cacheValidTokenOfCaller records that the caller has a valid token of its device, unless tokens were dropped after token was read.
// versionBeforeRead is the cacheVersion before the read.
func (k *tokenCache) cacheValidTokenOfCaller(caller devices.Caller, token store.Token, versionBeforeRead int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if versionBeforeRead == k.version {
		key, actor := k.lastActorEntry(caller)
		actor.until = k.cacheExpiry(token)
		putWithLimit(k.devices, k.maxDevices, key, actor)
	}
}

// RecordAdmission records that the caller was admitted, and how its device can be notified of work.
func (k *tokenCache) RecordAdmission(caller devices.Caller, reach store.Reach) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, actor := k.lastActorEntry(caller)
	actor.isAdmitted, actor.isHawkbit, actor.reach = true, caller.Wire == devices.WireHawkbit, int8(reach) // int8 holds each of the three values of Reach
	putWithLimit(k.devices, k.maxDevices, key, actor)
}

// RecordReach records how the caller's device can be notified. It does nothing if another caller was admitted for the device later.
func (k *tokenCache) RecordReach(caller devices.Caller, reach store.Reach) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key, actor := k.lastActorEntry(caller); actor.isAdmitted {
		actor.reach = int8(reach)
		k.devices[key] = actor
	}
}

// putWithLimit sets entries[key] to value. If entries then has more than maxEntries entries, putWithLimit removes arbitrary entries.
func putWithLimit[K comparable, V any](entries map[K]V, maxEntries int, key K, value V) {
	entries[key] = value
	for len(entries) > maxEntries {
		for other := range entries {
			delete(entries, other)
			break
		}
	}
}

// ForgetAdmission forgets who was admitted for the device, so that its next report reads the device from the ledger. If device is empty, it
// forgets the admissions of all devices. It is called for each row of the news that names a device, because every change of who may act for a
// device adds such a row.
func (k *tokenCache) ForgetAdmission(device string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if device == "" {
		clear(k.devices)
	}
	key := k.hashOfDevice(device)
	if e, is := k.devices[key]; is {
		e.isAdmitted = false
		k.devices[key] = e
	}
}

// dropDevice drops the tokens of a device from the cache of this replica. The other replicas read from the ledger that the tokens changed.
func (k *tokenCache) dropDevice(device devices.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version++
	delete(k.devices, k.hashOfDevice(string(device)))
	maps.DeleteFunc(k.tokens, func(_ [sha256.Size]byte, e cachedToken) bool { return e.Device == string(device) })
}

func (k *tokenCache) nextChangesPosition() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.next
}

// applyTokenChanges drops the tokens in changes. fromPosition is the position from which changes was read, and readBegan is the time before the
// read. applyTokenChanges drops all tokens if it cannot know which tokens were changed: if the previous read was too long ago, if a change has
// no hash, or if changes.Next is below fromPosition, which shows that changes comes from another ledger.
func (k *tokenCache) applyTokenChanges(readBegan time.Time, fromPosition int64, changes store.TokenChanges) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := changes.Next < fromPosition || changes.Now.Sub(k.ledgerTime) > maxReadGap
	for _, c := range changes.Tokens {
		if len(c.Hash) == sha256.Size {
			delete(k.tokens, [sha256.Size]byte(c.Hash))
			delete(k.devices, k.hashOfDevice(c.Device))
		} else {
			all = true
		}
	}
	if all {
		clear(k.tokens)
		clear(k.devices)
	}
	if all || len(changes.Tokens) > 0 {
		k.version++
	}
	k.read, k.ledgerTime, k.next = readBegan, changes.Now, changes.Next
}

// DropChangedTokens drops the tokens that any replica has changed since the last call. If it succeeds, the cache is trusted for the duration
// trustedFor.
func (k *tokenCache) DropChangedTokens(ctx context.Context) error {
	begun, from := k.now(), k.nextChangesPosition()
	changes, err := k.source.ChangedTokens(ctx, from)
	if err != nil {
		return fmt.Errorf("reading changed tokens: %w", err)
	}
	k.applyTokenChanges(begun, from, changes)
	return nil
}

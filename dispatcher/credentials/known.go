package credentials

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// knownTokens spares the ledger a look-up per report. Only hits are kept. Changed
// tokens are read so often, and dropped, that a revoked token dies on every replica;
// while they cannot be read nothing that is kept is believed.
type knownTokens struct {
	now func() time.Time

	mu     sync.Mutex
	hit    map[[sha256.Size]byte]knownToken
	read   time.Time // when the last reading of changes began; zero: none
	ledger time.Time // the ledger's time then, or a little later
	next   int64     // where the next one begins
	drops  int       // how often tokens were dropped
}

type knownToken struct {
	token store.Token
	until time.Time
}

const (
	tokenMemory = time.Hour       // below the time that the ledger keeps changes
	believed    = 3 * time.Second // since the last reading of changes
	tokensKept  = 100_000         // beyond it any one is forgotten: a bound, not a policy
)

func newKnownTokens(now func() time.Time) *knownTokens {
	return &knownTokens{now: now, hit: make(map[[sha256.Size]byte]knownToken)}
}

// miss is when it was that a token was not known.
type miss struct {
	at    time.Time
	drops int
}

// get returns a token that is known to be valid.
func (k *knownTokens) get(hash [sha256.Size]byte) (t store.Token, ok bool, m miss) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.hit[hash]
	return e.token, ok && k.holds(e), miss{at: k.now(), drops: k.drops}
}

func (k *knownTokens) holds(e knownToken) bool {
	now := k.now()
	since := now.Sub(k.read)
	ends := e.token.ExpiresAt
	return since < believed && now.Before(e.until) && (ends == nil || k.ledger.Add(since).Before(*ends))
}

// put keeps what was looked up after a miss, unless tokens were dropped since: this may be one.
func (k *knownTokens) put(hash [sha256.Size]byte, t store.Token, m miss) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m.drops != k.drops {
		return
	}
	for known := range k.hit {
		if len(k.hit) < tokensKept {
			break
		}
		delete(k.hit, known)
	}
	k.hit[hash] = knownToken{token: t, until: m.at.Add(tokenMemory)}
}

// forget drops the tokens of a device; other replicas read that they were changed.
func (k *knownTokens) forget(device devices.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drops++
	maps.DeleteFunc(k.hit, func(_ [sha256.Size]byte, e knownToken) bool { return e.token.Device == string(device) })
}

func (k *knownTokens) nextReading() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.next
}

// changed drops tokens by a reading that began then. All are dropped if it cannot tell
// which: the one before is too long ago, or was of another ledger, which was ahead.
func (k *knownTokens) changed(begun time.Time, from int64, changes store.TokenChanges) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := changes.Next < from || changes.Now.Sub(k.ledger) > tokenMemory
	for _, hash := range changes.Hashes {
		if len(hash) == sha256.Size {
			delete(k.hit, [sha256.Size]byte(hash))
		} else {
			all = true
		}
	}
	if all {
		clear(k.hit)
	}
	if all || len(changes.Hashes) > 0 {
		k.drops++
	}
	k.read, k.ledger, k.next = begun, changes.Now, changes.Next
}

// FollowTokens drops from memory the tokens that were changed since it was called last,
// by whatever replica. What is in memory is believed for some seconds after that.
func (r *Registry) FollowTokens(ctx context.Context) error {
	begun, from := r.config.Now(), r.known.nextReading()
	changes, err := r.config.Ledger.ChangedTokens(ctx, from)
	if err != nil {
		return fmt.Errorf("reading changed tokens: %w", err)
	}
	r.known.changed(begun, from, changes)
	return nil
}

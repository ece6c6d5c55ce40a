package credentials

import (
	"crypto/sha256"
	"maps"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// knownTokens spares the ledger a look-up per report. Only hits are kept, and
// only for a while, so that a revoked token dies on every replica.
type knownTokens struct {
	now func() time.Time
	mu  sync.Mutex
	hit map[[sha256.Size]byte]knownToken
}

type knownToken struct {
	token store.Token
	until time.Time
}

const (
	tokenMemory = 5 * time.Second
	tokensKept  = 100_000 // beyond it all are forgotten: a bound, not a policy
)

func newKnownTokens(now func() time.Time) *knownTokens {
	return &knownTokens{now: now, hit: make(map[[sha256.Size]byte]knownToken)}
}

func (k *knownTokens) get(hash [sha256.Size]byte) (store.Token, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.hit[hash]
	return e.token, ok && k.now().Before(e.until)
}

func (k *knownTokens) put(hash [sha256.Size]byte, t store.Token) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.hit) >= tokensKept {
		clear(k.hit)
	}
	k.hit[hash] = knownToken{token: t, until: k.now().Add(tokenMemory)}
}

// forget drops the tokens of a device; on other replicas they die by their age.
func (k *knownTokens) forget(device devices.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.hit, func(_ [sha256.Size]byte, e knownToken) bool { return e.token.Device == string(device) })
}

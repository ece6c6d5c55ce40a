package marks

import (
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	// fresh is the time for which missing marks are trusted after a read of the news has begun. The pass "marks" reads the news every
	// second.
	fresh = 2 * time.Second
	// maxWrongTrust is the maximum time for which a missing mark is trusted after another replica has committed work for its device. It holds
	// even if Redis fails or loses data.
	maxWrongTrust = 5 * time.Second
)

// trustState records which news (rows of the change log) this replica has read, and when. A mark is trusted only if its hash includes the news up
// to a position, which is computed from these reads. All times are of this process's clock, except newsReading.ledger.
type trustState struct {
	mu       sync.Mutex
	readings []newsReading // oldest first
	own      int64         // id of the newest news that this process committed

	// A wait is trusted only if its position in the news is not before the latest news of its pool.
	latestOfPool map[string]int64 // pool -> id of its latest news; only ids above latestOfAll
	latestOfAll  int64            // id of the latest news that may concern every pool
	handled      int64            // id up to which the fields above include the news
}

// newsReading is the result of one read of the news.
type newsReading struct {
	began  time.Time
	newest int64
	ledger time.Time // the time of the ledger
}

func (b *trustState) addReading(reading newsReading) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.readings); n > 0 && reading.newest < b.readings[n-1].newest {
		b.readings, b.own = nil, 0 // the newest id decreased, so this is another ledger or a restored one
	}
	b.readings = append(b.readings, reading)
	b.dropOldReadings(reading.began)
}

// dropOldReadings removes the readings that are older than maxWrongTrust. The oldest reading that remains determines requiredPosition.
func (b *trustState) dropOldReadings(now time.Time) {
	for len(b.readings) > 0 && now.Sub(b.readings[0].began) > maxWrongTrust {
		b.readings = b.readings[1:]
	}
}

// recordOwnCommit records that this process has committed news up to the id newestNewsID.
func (b *trustState) recordOwnCommit(newestNewsID int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own = max(b.own, newestNewsID)
}

// maxPoolsWithNews is the maximum number of pools in trustState.latestOfPool, to limit memory.
const maxPoolsWithNews = 10_000

// addPoolNews records which pools the news in rows concern. handledUpToID is the id up to which this replica has now handled the news. hasGap is
// true if news before rows are missing. The missing news may concern any pool.
func (b *trustState) addPoolNews(rows []store.News, handledUpToID int64, hasGap bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if hasGap || b.latestOfPool == nil {
		b.latestOfPool, b.latestOfAll = make(map[string]int64), handledUpToID
	}
	for _, n := range rows {
		switch {
		case n.ID <= b.handled && !hasGap:
		case n.Pool == store.AllPools, n == (store.News{ID: n.ID}):
			b.latestOfAll = max(b.latestOfAll, n.ID)
		case n.Pool != "":
			b.latestOfPool[n.Pool] = max(b.latestOfPool[n.Pool], n.ID)
		}
	}
	if len(b.latestOfPool) > maxPoolsWithNews {
		b.latestOfPool, b.latestOfAll = make(map[string]int64), handledUpToID
	}
	b.handled = handledUpToID
}

// isWaitNewerThanPoolNews reports whether wait was recorded after all news of its pool that this replica has read or committed.
func (b *trustState) isWaitNewerThanPoolNews(wait Wait) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hasHandledNewsLocked() {
		return false
	}
	return wait.Position <= b.handled && wait.Position >= max(b.latestOfAll, b.latestOfPool[wait.Pool])
}

func (b *trustState) hasHandledNews() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hasHandledNewsLocked()
}

// hasHandledNewsLocked reports whether this replica has handled all news that it read or committed. The caller must hold mu.
func (b *trustState) hasHandledNewsLocked() bool {
	n := len(b.readings)
	return n > 0 && b.handled >= max(b.readings[n-1].newest, b.own)
}

func (b *trustState) handledNewsID() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.handled
}

// requiredPosition returns the position that marks must have reached to be trusted, and ledgerTime, the time of the ledger. If more than fresh
// has passed since the last read of the news began, ok is false and no mark is trusted.
func (b *trustState) requiredPosition(now time.Time) (position int64, ledgerTime time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropOldReadings(now)
	n := len(b.readings)
	if n == 0 || now.Sub(b.readings[n-1].began) > fresh {
		return 0, time.Time{}, false
	}
	last := b.readings[n-1]
	return max(b.readings[0].newest, b.own), last.ledger.Add(now.Sub(last.began)), true
}

package marks

import (
	"sync"
	"time"
)

const (
	// fresh is how long after a reading of the ledger began absent marks are believed.
	fresh = 2 * time.Second
	// bound is how long a missing mark may be believed after the commit of its news.
	bound = 5 * time.Second
)

// belief is what a replica knows of the news, and so how far marks must have come to be
// believed. It goes by elapsed time.
type belief struct {
	mu       sync.Mutex
	readings []reading // oldest first
	own      int64     // the newest news that this process committed
}

// reading is one of the ledger's news.
type reading struct {
	began  time.Time
	newest int64
	ledger time.Time // by the clock of the ledger
}

// read notes a reading.
func (b *belief) read(r reading) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.readings); n > 0 && r.newest < b.readings[n-1].newest {
		b.readings, b.own = nil, 0 // another ledger, or one that was restored
	}
	b.readings = append(b.readings, r)
	b.drop(r.began)
}

// drop forgets readings that may lack news which must be marked by now.
func (b *belief) drop(now time.Time) {
	for len(b.readings) > 0 && now.Sub(b.readings[0].began) > bound {
		b.readings = b.readings[1:]
	}
}

// wrote notes news of this process.
func (b *belief) wrote(newest int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own = max(b.own, newest)
}

// needed is how far marks must have come to be believed, and what the clock of the ledger
// says now; false: none are, since the ledger was not read lately.
func (b *belief) needed(now time.Time) (come int64, ledger time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(now)
	n := len(b.readings)
	if n == 0 || now.Sub(b.readings[n-1].began) > fresh {
		return 0, time.Time{}, false
	}
	last := b.readings[n-1]
	return max(b.readings[0].newest, b.own), last.ledger.Add(now.Sub(last.began)), true
}

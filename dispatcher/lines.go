package dispatcher

import (
	"maps"
	"slices"
	"sync"
)

// poolsPerLook is in how many pools one pass asks the ledger for work.
const poolsPerLook = 500

// poolLines is what this replica knows of the pools there are, and in which
// somebody waits.
type poolLines struct {
	mu      sync.Mutex
	known   map[string]bool
	waiting map[string]bool // as of the last pass, and since
	asked   string          // the last pool for which the ledger was asked for work
}

func newPoolLines() *poolLines {
	return &poolLines{known: make(map[string]bool), waiting: make(map[string]bool)}
}

func (l *poolLines) add(pool string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[pool] = true
}

func (l *poolLines) remove(pool string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, pool)
	delete(l.waiting, pool)
}

// names are all pools, sorted.
func (l *poolLines) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.known))
}

// next are the pools whose turn it is to be asked the ledger about: each comes
// again when all others had theirs.
func (l *poolLines) next() []string {
	all := l.names()
	l.mu.Lock()
	defer l.mu.Unlock()
	from, found := slices.BinarySearch(all, l.asked)
	if found {
		from++
	}
	all = append(all[from:], all[:from]...)
	all = all[:min(len(all), poolsPerLook)]
	if len(all) > 0 {
		l.asked = all[len(all)-1]
	}
	return all
}

// wait notes that somebody waits for a pool.
func (l *poolLines) wait(pool string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[pool] = true
}

// setWaiting notes in which pools somebody waits.
func (l *poolLines) setWaiting(pools []string) {
	waiting := make(map[string]bool, len(pools))
	for _, pool := range pools {
		waiting[pool] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = waiting
}

// amongWaiting are those of these pools in which somebody waits.
func (l *poolLines) amongWaiting(pools []string) (waiting []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pool := range pools {
		if l.waiting[pool] {
			waiting = append(waiting, pool)
		}
	}
	return waiting
}

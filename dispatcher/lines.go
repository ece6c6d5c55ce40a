package dispatcher

import (
	"maps"
	"slices"
	"sync"
)

const (
	poolsPerLook = 500 // in which one pass asks the ledger for work
	poolsTidied  = 50  // by one pass, of those in which nothing can be handed on
)

// poolLines is what this replica knows of the pools there are, and in which
// somebody waits.
type poolLines struct {
	mu      sync.Mutex
	known   map[string]bool
	waiting map[string]bool // as of the last pass, and since
	asked   []string        // the pools for which the ledger was asked for work by this pass
	last    string          // the last pool that was searched, or had no work
	tidied  string          // the last pool of which the line was tidied
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
	l.asked, _ = inTurn(all, l.last, poolsPerLook)
	return l.asked
}

// search are those of the pools just asked about that have work, up to as many as one
// pass searches: the next pass goes on behind the last of them.
func (l *poolLines) search(work []string) (searched []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pool := range l.asked {
		if slices.Contains(work, pool) {
			if len(searched) == searchesAPass {
				break
			}
			searched = append(searched, pool)
		}
		l.last = pool
	}
	return searched
}

// inTurn are up to so many of what is sorted, from behind the last ones on, and
// which of them is the last now.
func inTurn(all []string, last string, most int) (part []string, newLast string) {
	from, found := slices.BinarySearch(all, last)
	if found {
		from++
	}
	part = slices.Concat(all[from:], all[:from])
	part = part[:min(len(part), most)]
	if len(part) > 0 {
		last = part[len(part)-1]
	}
	return part, last
}

// wait notes that somebody waits for a pool.
func (l *poolLines) wait(pool string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[pool] = true
}

// setWaiting notes in which pools somebody waits, which are sorted, and returns
// those whose lines are to be tidied: some in each pass, in turn.
func (l *poolLines) setWaiting(pools []string) (tidy []string) {
	waiting := make(map[string]bool, len(pools))
	for _, pool := range pools {
		waiting[pool] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = waiting
	tidy, l.tidied = inTurn(pools, l.tidied, poolsTidied)
	return tidy
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

// Pools are those that this replica knows of, sorted.
func (d *Dispatcher) Pools() []string { return d.lines.names() }

package waiters

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	poolsPerLook = 500 // in which one pass asks the ledger for work
	poolsTidied  = 50  // by one pass, of those in which nothing can be handed on

	holdWeight  = 0.05            // of the newest hold time in the mean
	unknownHold = 5 * time.Second // stands in until a pool has ended a grant
	mostKinds   = 10_000          // of one pool; beyond it all are forgotten: a bound, not a policy
)

// Pools is what this replica knows of the pools there are. It is safe for concurrent
// use.
type Pools struct {
	pace slots.Pace // of every pool, without the hold time

	mu     sync.Mutex
	all    map[string]*pool
	asked  []string // the pools for which the ledger was asked for work by this pass
	last   string   // the last pool that was searched, or had no work
	tidied string   // the last pool of which the queue was tidied
}

// pool is one of them.
type pool struct {
	listed  bool                     // the ledger has it
	waiting bool                     // devices stand in its queue, as of the last pass and since
	hold    time.Duration            // the usual time that a grant is held, as seen here; 0: unknown
	kinds   map[string]time.Duration // likewise, of each kind of task
	search  *search                  // how far it has come; nil: it begins anew
	urgent  time.Time                // until when the search for urgent tasks rests
}

func newPools(pace slots.Pace) *Pools { return &Pools{pace: pace, all: make(map[string]*pool)} }

// of is called with mu held.
func (p *Pools) of(name string) *pool {
	if p.all[name] == nil {
		p.all[name] = &pool{kinds: make(map[string]time.Duration)}
	}
	return p.all[name]
}

// Add notes that the ledger has a pool, and says whether that is new.
func (p *Pools) Add(name string) (isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of(name)
	isNew, one.listed = !one.listed, true
	return isNew
}

// Remove forgets a pool.
func (p *Pools) Remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, name)
}

// Known are all pools of which anything is known, also if the ledger does not have them.
func (p *Pools) Known() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := make(map[string]bool, len(p.all))
	for name := range p.all {
		known[name] = true
	}
	return known
}

// Names are all pools that the ledger has, sorted.
func (p *Pools) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.names()
}

func (p *Pools) names() []string {
	names := make([]string, 0, len(p.all))
	for name, one := range p.all {
		if one.listed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// next are the pools whose turn it is to be asked the ledger about: each comes
// again when all others had theirs.
func (p *Pools) next() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, _ = roundRobin(p.names(), p.last, poolsPerLook)
	return p.asked
}

// toSearch are those of the pools just asked about that have work, up to as many as one
// pass searches: the next pass goes on behind the last of them.
func (p *Pools) toSearch(work []string) (searched []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.asked {
		if slices.Contains(work, name) {
			if len(searched) == searchesAPass {
				break
			}
			searched = append(searched, name)
		}
		p.last = name
	}
	return searched
}

// roundRobin are up to so many of what is sorted, from behind the last ones on, and
// which of them is the last now.
func roundRobin(all []string, last string, most int) (part []string, newLast string) {
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

// Wait notes that a device waits for a slot of a pool.
func (p *Pools) Wait(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(name).waiting = true
}

// setWaiting notes in which pools devices wait, which are sorted, and returns
// those whose queues are to be tidied: some in each pass, in turn.
func (p *Pools) setWaiting(names []string) (tidy []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		one.waiting = false
	}
	for _, name := range names {
		p.of(name).waiting = true
	}
	tidy, p.tidied = roundRobin(names, p.tidied, poolsTidied)
	return tidy
}

// AmongWaiting are those of these pools in which devices wait.
func (p *Pools) AmongWaiting(names []string) (waiting []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		if one := p.all[name]; one != nil && one.waiting {
			waiting = append(waiting, name)
		}
	}
	return waiting
}

// searchOf returns the progress of the search in a pool, for the goroutine that fills the pool
// now. If restarts is true, the search begins with the first batch.
func (p *Pools) searchOf(name string, restarts bool) *search {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of(name)
	if restarts || one.search == nil {
		one.search = &search{marks: make(map[int64]store.Mark)}
	}
	return one.search
}

// urgentRests says whether the search for urgent tasks of a pool rests.
func (p *Pools) urgentRests(name string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.of(name).urgent)
}

func (p *Pools) restUrgent(name string, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(name).urgent = until
}

// RestartSearches lets the next pass search every pool from its first batch: ended tasks may
// wait again.
func (p *Pools) RestartSearches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		one.search = nil
	}
}

// Held notes for how long a grant was held: the means are weighted exponentially.
func (p *Pools) Held(name, kind string, held time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of(name)
	if len(one.kinds) >= mostKinds {
		clear(one.kinds)
	}
	one.hold = moved(one.hold, held)
	one.kinds[kind] = moved(one.kinds[kind], held)
}

// moved is the mean after one more; 0: there was none.
func moved(mean, held time.Duration) time.Duration {
	mean = cmp.Or(mean, held)
	return mean + time.Duration(holdWeight*float64(held-mean))
}

// Hold is the usual time that a grant of a pool is held; known: one has ended here.
func (p *Pools) Hold(name string) (usual time.Duration, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.all[name]; one != nil {
		return cmp.Or(one.hold, unknownHold), one.hold != 0
	}
	return unknownHold, false
}

// Pace returns the times from which the queue of a pool computes when a device asks again.
func (p *Pools) Pace(name string) slots.Pace {
	pace := p.pace
	pace.Hold, _ = p.Hold(name)
	return pace
}

// HoldOf is that of a kind, or of the pool until the kind is known.
func (p *Pools) HoldOf(name, kind string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.all[name]; one != nil {
		return cmp.Or(one.kinds[kind], one.hold, unknownHold)
	}
	return unknownHold
}

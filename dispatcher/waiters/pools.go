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
	poolsPerRead = 500 // maximum number of pools for which one pass reads from the ledger whether tasks wait
	poolsTidied  = 50  // maximum number of queues from which one pass removes the devices that no longer report

	holdWeight  = 0.05            // weight of the newest hold time in the moving average
	unknownHold = 5 * time.Second // assumed hold time of a pool in which no grant has ended yet
	maxKinds    = 10_000          // maximum number of kinds per pool, to limit memory; if it is reached, all kinds are forgotten
)

// Pools holds the state that this replica keeps for each pool. It is safe for concurrent use.
type Pools struct {
	pace slots.Pace // durations for the queue of every pool; Pools.Pace adds the hold time and the longest sleep of one pool

	mu     sync.Mutex
	all    map[string]*poolState
	asked  []string // result of the latest nextPoolsToRead
	last   string   // the last pool of the previous pass: nextPoolsToRead continues behind it
	tidied string   // the last pool whose queue setPoolsWithWaiters returned: the next call continues behind it
}

type poolState struct {
	listed          bool                     // the ledger has the pool
	longestSleep    time.Duration            // setting of the pool (slots.Pace); 0 until the ledger was read
	waiting         bool                     // devices wait in the queue of the pool, according to the last pass that could read the queue, and later calls of RecordWaitingDevice
	hold            time.Duration            // moving average of hold times at this replica; 0 if unknown
	kinds           map[string]time.Duration // moving average of hold times, by kind of task
	search          *searchProgress          // progress of the search for sleeping devices; if nil, the search begins anew
	urgentRestUntil time.Time                // before this time, no search for devices with urgent tasks begins
}

func newPools(pace slots.Pace) *Pools { return &Pools{pace: pace, all: make(map[string]*poolState)} }

// stateOfPool returns the state of a pool, and creates it if necessary. The caller must hold mu.
func (p *Pools) stateOfPool(pool string) *poolState {
	if p.all[pool] == nil {
		p.all[pool] = &poolState{kinds: make(map[string]time.Duration)}
	}
	return p.all[pool]
}

// Add records that the ledger has this pool. longestSleep is a setting of the pool (see slots.Pace). isNew is true if the pool was not
// recorded before.
func (p *Pools) Add(pool string, longestSleep time.Duration) (isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.stateOfPool(pool)
	isNew, one.listed, one.longestSleep = !one.listed, true, longestSleep
	return isNew
}

// Remove deletes the state of a pool.
func (p *Pools) Remove(pool string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, pool)
}

// NameSet returns the set of the names of all pools with a state at this replica. It includes pools that the ledger does not have.
func (p *Pools) NameSet() (names map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set := make(map[string]bool, len(p.all))
	for name := range p.all {
		set[name] = true
	}
	return set
}

// Names returns the names of all pools that the ledger has, sorted.
func (p *Pools) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sortedNames()
}

// sortedNames returns the names of all pools that the ledger has. The caller must hold mu.
func (p *Pools) sortedNames() []string {
	names := make([]string, 0, len(p.all))
	for name, state := range p.all {
		if state.listed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// nextPoolsToRead returns the pools for which the current pass reads from the ledger whether tasks wait. Successive calls go through all pools
// in turn.
func (p *Pools) nextPoolsToRead() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, _ = nextPoolsRoundRobin(p.sortedNames(), p.last, poolsPerRead)
	return p.asked
}

// poolsToSearch returns the pools in which the current pass searches for sleeping devices. It takes at most searchesAPass of the pools that are
// both in poolsWithWork and in the last result of nextPoolsToRead. The next pass continues behind the last returned pool.
func (p *Pools) poolsToSearch(poolsWithWork []string) (searched []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.asked {
		if slices.Contains(poolsWithWork, name) {
			if len(searched) == searchesAPass {
				break
			}
			searched = append(searched, name)
		}
		p.last = name
	}
	return searched
}

// nextPoolsRoundRobin returns at most limit elements of sortedPools, a sorted list. It begins behind the element that is equal to lastPool, and
// continues at the start of the list. newLastPool is the last returned element, or lastPool if there is none.
func nextPoolsRoundRobin(sortedPools []string, lastPool string, limit int) (nextPools []string, newLastPool string) {
	from, found := slices.BinarySearch(sortedPools, lastPool)
	if found {
		from++
	}
	nextPools = slices.Concat(sortedPools[from:], sortedPools[:from])
	nextPools = nextPools[:min(len(nextPools), limit)]
	if len(nextPools) > 0 {
		lastPool = nextPools[len(nextPools)-1]
	}
	return nextPools, lastPool
}

// RecordWaitingDevice records that a device waits for a slot of a pool.
func (p *Pools) RecordWaitingDevice(pool string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stateOfPool(pool).waiting = true
}

// setPoolsWithWaiters records that devices wait in the pools poolsWithWaiters (sorted). If isComplete is true, it also records that no device
// waits in any other pool. poolsToTidy is a part of poolsWithWaiters, and the next call returns the next part. From the queues of poolsToTidy, the current pass removes the devices that no longer report.
func (p *Pools) setPoolsWithWaiters(poolsWithWaiters []string, isComplete bool) (poolsToTidy []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		one.waiting = one.waiting && !isComplete
	}
	for _, name := range poolsWithWaiters {
		p.stateOfPool(name).waiting = true
	}
	poolsToTidy, p.tidied = nextPoolsRoundRobin(poolsWithWaiters, p.tidied, poolsTidied)
	return poolsToTidy
}

// PoolsWithWaiters returns the elements of pools in which devices wait, as far as this replica knows.
func (p *Pools) PoolsWithWaiters(pools []string) (poolsWithWaiters []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range pools {
		if one := p.all[name]; one != nil && one.waiting {
			poolsWithWaiters = append(poolsWithWaiters, name)
		}
	}
	return poolsWithWaiters
}

// progressOfSearch returns the progress of the search for sleeping devices in a pool. Only the goroutine that fills the pool may use it. If
// restartSearch is true, the search begins again with the first batch.
func (p *Pools) progressOfSearch(pool string, restartSearch bool) *searchProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.stateOfPool(pool)
	if restartSearch || state.search == nil {
		state.search = &searchProgress{positions: make(map[int64]store.TaskPosition)}
	}
	return state.search
}

func (p *Pools) isUrgentSearchPaused(pool string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.stateOfPool(pool).urgentRestUntil)
}

// pauseUrgentSearch prevents further searches for devices with urgent tasks of a pool. until is the time at which the next search may begin.
func (p *Pools) pauseUrgentSearch(pool string, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stateOfPool(pool).urgentRestUntil = until
}

// RestartSearches makes the next pass search every pool from its first batch. It is called after ended tasks were made pending again.
func (p *Pools) RestartSearches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		one.search = nil
	}
}

// RecordHoldTime adds the hold time of a grant to the moving averages of its pool and of the kind of its task.
func (p *Pools) RecordHoldTime(pool, taskKind string, holdTime time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.stateOfPool(pool)
	if len(one.kinds) >= maxKinds {
		clear(one.kinds)
	}
	one.hold = updatedMeanHoldTime(one.hold, holdTime)
	one.kinds[taskKind] = updatedMeanHoldTime(one.kinds[taskKind], holdTime)
}

// updatedMeanHoldTime returns the moving average after a new sample. meanBefore is the average before, or 0 if there was no earlier sample.
func updatedMeanHoldTime(meanBefore, sample time.Duration) time.Duration {
	meanBefore = cmp.Or(meanBefore, sample)
	return meanBefore + time.Duration(holdWeight*float64(sample-meanBefore))
}

// UsualHoldTime returns the usual hold time of grants of a pool. isMeasured is true if a grant of the pool has ended at this replica.
func (p *Pools) UsualHoldTime(pool string) (holdTime time.Duration, isMeasured bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.all[pool]; one != nil {
		return cmp.Or(one.hold, unknownHold), one.hold != 0
	}
	return unknownHold, false
}

// Pace returns the durations with which the queue of a pool computes when a waiting device must report again.
func (p *Pools) Pace(pool string) slots.Pace {
	pace := p.pace
	pace.MeanHold, _ = p.UsualHoldTime(pool)
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.all[pool]; one != nil {
		pace.LongestSleep = one.longestSleep
	}
	return pace
}

// UsualHoldTimeOfKind returns the usual hold time of grants of tasks of this kind. If no grant of the kind has ended, it returns the usual hold
// time of all grants of the pool.
func (p *Pools) UsualHoldTimeOfKind(pool, taskKind string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.all[pool]; one != nil {
		return cmp.Or(one.kinds[taskKind], one.hold, unknownHold)
	}
	return unknownHold
}

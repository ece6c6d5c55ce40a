package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	batchesPerSearch = 100              // that wait in the pool
	tasksPerSearch   = 400              // that are looked at
	fewestTasks      = 4                // of each batch
	seenSlack        = 10 * time.Second // between two flushes of when devices were seen

	// A search that came to its end rests, the longer the more it looked at: it
	// looks at some 200 tasks a second at most.
	restAtLeast = 400 * time.Millisecond
	restPerTask = 5 * time.Millisecond
	restAtMost  = 10 * time.Second
)

// search is how far the search for devices of a pool has come. Only whoever has
// the pool's turn uses it.
type search struct {
	after  int64                // the batches up to it were looked at in this round
	marks  map[int64]store.Mark // how far each batch was; zero: through
	looked int                  // tasks, in this round
	rest   time.Time            // until when it rests
}

// searches are those of all pools.
type searches struct {
	mu  sync.Mutex
	all map[string]*search
}

func newSearches() *searches { return &searches{all: make(map[string]*search)} }

func (s *searches) of(pool string) *search {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[pool] == nil {
		s.all[pool] = &search{marks: make(map[int64]store.Mark)}
	}
	return s.all[pool]
}

// forget lets the search for devices of every pool begin anew.
func (s *searches) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.all)
}

func (s *searches) remove(pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, pool)
}

// wanting is how many more waiters who can be told a line should have: for what
// is free, and for what becomes free until the pass after the next.
func (d *Dispatcher) wanting(pool string, line slots.Line) int {
	free := max(line.Capacity-line.Held-line.Reserved, 0)
	soon := int(2 * time.Second * time.Duration(line.Capacity) / max(d.holds.mean(pool), time.Millisecond))
	return free + min(max(soon, 4), tasksPerSearch) - line.Ready
}

// findSeats looks in the ledger for devices that could start something of the
// pool and can be told, though they stand in no line. Each batch is looked
// through in its order; the order between batches, the line keeps.
func (d *Dispatcher) findSeats(ctx context.Context, pool string, anew bool) ([]slots.Seat, error) {
	s := d.searches.of(pool)
	if anew {
		*s = search{marks: make(map[int64]store.Mark)}
	}
	if d.now().Before(s.rest) {
		return nil, nil
	}
	open, err := d.store.OpenBatches(ctx, pool, s.after, batchesPerSearch)
	if err != nil {
		return nil, fmt.Errorf("finding devices for pool %s: %w", pool, err)
	}
	var running []int64
	for _, b := range open {
		if b.Running {
			running = append(running, b.ID)
		}
	}
	seats, through, err := d.searchBatches(ctx, pool, s, running)
	if err != nil {
		return nil, err
	}
	switch {
	case !through: // goes on with the next pass
	case len(open) == batchesPerSearch:
		s.after = open[len(open)-1].ID
	default:
		s.end(d.now())
	}
	return seats, nil
}

// end begins a new round, after a rest.
func (s *search) end(now time.Time) {
	rest := restAtLeast + time.Duration(s.looked)*restPerTask
	*s = search{marks: make(map[int64]store.Mark), rest: now.Add(min(rest, restAtMost))}
}

// searchBatches looks at the next tasks of each of the batches, and says whether
// all of them are through.
func (d *Dispatcher) searchBatches(ctx context.Context, pool string, s *search, batches []int64) (found []slots.Seat, through bool, err error) {
	through = true
	for _, batch := range batches {
		mark, begun := s.marks[batch]
		if begun && !mark.Set { // through in this round
			continue
		}
		limit := max(tasksPerSearch/len(batches), fewestTasks)
		part, err := d.store.Seats(ctx, store.Search{Pool: pool, Batch: batch, After: mark, Seen: d.present(), Limit: limit})
		if err != nil {
			return nil, false, fmt.Errorf("finding devices for pool %s: %w", pool, err)
		}
		s.looked += part.Looked
		if part.Looked < limit {
			part.Last = store.Mark{}
		}
		s.marks[batch] = part.Last
		through = through && !part.Last.Set
		for _, seat := range part.Seats {
			found = append(found, slots.Seat{
				Waiter: slots.Waiter{Device: seat.Device, Batch: seat.Batch, Task: seat.Task, Weight: seat.Weight, Priority: seat.Priority},
				Reach:  slots.Reach(seat.Reach),
			})
		}
	}
	return found, through, nil
}

// present is how lately a device must have been seen to be counted on: it has
// missed two reports at most.
func (d *Dispatcher) present() time.Duration { return 3*d.config.ReportPeriod + seenSlack }

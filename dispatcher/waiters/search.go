package waiters

import (
	"cmp"
	"context"
	"fmt"
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

// search is how far the search for devices of a pool has come.
type search struct {
	after  int64                // the batches up to it were looked at in this round
	marks  map[int64]store.Mark // how far each batch was; zero: through
	looked int                  // tasks, in this round
	seen   time.Duration        // how lately devices must have been seen; 0: as is usual
	rest   time.Time            // until when it rests
}

// wanting is how many more waiters that can be told a queue should have: for what
// is free, and for what becomes free until the pass after the next.
func (n *Notifier) wanting(pool string, queue slots.QueueState) int {
	hold, _ := n.Pools.Hold(pool)
	free := max(queue.Capacity-queue.Held-queue.Reserved, 0)
	soon := int(2 * time.Second * time.Duration(queue.Capacity) / max(hold, time.Millisecond))
	return free + min(max(soon, 4), tasksPerSearch) - queue.Ready
}

// findFor looks for devices of a pool: for its free slots, and when something has come, or
// something urgent may start, also for those with an urgent task, which need no free slot and
// go before all that wait.
func (n *Notifier) findFor(ctx context.Context, pool string, queue slots.QueueState, look looking) (found []slots.Joiner, err error) {
	if look.anew || look.urgent && !n.Pools.urgentRests(pool, n.config.Now()) {
		if found, err = n.findUrgent(ctx, pool); err != nil {
			return nil, err
		}
	}
	if n.wanting(pool, queue) <= 0 {
		return found, nil
	}
	more, err := n.findJoiners(ctx, pool, look.anew)
	return append(found, more...), err
}

// findUrgent looks at the first tasks of the newest urgent batches. Devices that it misses are
// found by their next reports.
func (n *Notifier) findUrgent(ctx context.Context, pool string) ([]slots.Joiner, error) {
	open, err := n.config.Ledger.UrgentBatches(ctx, pool, batchesPerSearch)
	if err != nil {
		return nil, fmt.Errorf("finding devices for pool %s: %w", pool, err)
	}
	s := &search{marks: make(map[int64]store.Mark), seen: n.asleep()}
	found, _, err := n.searchBatches(ctx, pool, s, running(open))
	n.Pools.restUrgent(pool, n.config.Now().Add(restAfter(s.looked)))
	return found, err
}

// running are the batches whose tasks may start now.
func running(open []store.OpenBatch) (ids []int64) {
	for _, b := range open {
		if b.Running {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// findJoiners looks in the ledger for devices that could start something of the
// pool and can be told, though they stand in no queue. Each batch is looked
// through in its order; the order between batches, the queue keeps.
func (n *Notifier) findJoiners(ctx context.Context, pool string, anew bool) ([]slots.Joiner, error) {
	s := n.Pools.searchOf(pool, anew)
	if n.config.Now().Before(s.rest) {
		return nil, nil
	}
	open, err := n.config.Ledger.OpenBatches(ctx, pool, s.after, batchesPerSearch)
	if err != nil {
		return nil, fmt.Errorf("finding devices for pool %s: %w", pool, err)
	}
	joiners, through, err := n.searchBatches(ctx, pool, s, running(open))
	if err != nil {
		return nil, err
	}
	switch {
	case !through: // goes on with the next pass
	case len(open) == batchesPerSearch:
		s.after = open[len(open)-1].ID
	default:
		s.end(n.config.Now())
	}
	return joiners, nil
}

// end begins a new round, after a rest.
func (s *search) end(now time.Time) {
	*s = search{marks: make(map[int64]store.Mark), rest: now.Add(restAfter(s.looked))}
}

func restAfter(looked int) time.Duration {
	return min(restAtLeast+time.Duration(looked)*restPerTask, restAtMost)
}

// searchBatches looks at the next tasks of each of the batches, and says whether
// all of them are through.
func (n *Notifier) searchBatches(ctx context.Context, pool string, s *search, batches []int64) (found []slots.Joiner, through bool, err error) {
	through = true
	for _, batch := range batches {
		mark, begun := s.marks[batch]
		if begun && !mark.Set { // through in this round
			continue
		}
		limit := max(tasksPerSearch/len(batches), fewestTasks)
		part, err := n.config.Ledger.ReachableDevices(ctx, store.ReachableSearch{Pool: pool, Batch: batch, After: mark, Seen: cmp.Or(s.seen, n.present()), Limit: limit})
		if err != nil {
			return nil, false, fmt.Errorf("finding devices for pool %s: %w", pool, err)
		}
		s.looked += part.Looked
		if part.Looked < limit {
			part.Last = store.Mark{}
		}
		s.marks[batch] = part.Last
		through = through && !part.Last.Set
		for _, d := range part.Devices {
			joiner := slots.Joiner{
				Waiter: slots.Waiter{Device: d.Device, Batch: d.Batch, Task: d.Task, Weight: d.Weight, Priority: d.Priority},
				Reach:  d.Reach,
			}
			if d.Urgent {
				joiner.Lane = n.config.UrgentShare
			}
			found = append(found, joiner)
		}
	}
	return found, through, nil
}

// present is how lately a device must have been seen to be counted on: it has
// missed two reports at most.
func (n *Notifier) present() time.Duration { return 3*n.config.ReportPeriod + seenSlack }

// asleep is that of a device which may wait in the queue already: one that can be told is asked
// back after up to 8 periods (slots.Pace).
func (n *Notifier) asleep() time.Duration { return 9*n.config.ReportPeriod + seenSlack }

// notLimited are the joiners whose devices could start something of the pool by its
// policies: those that cannot would stand before those that can. A pool whose policies are
// new is found by the next pass; until then the offers are given back.
func (n *Notifier) notLimited(ctx context.Context, pool string, joiners []slots.Joiner) ([]slots.Joiner, error) {
	if !n.config.Policies.Any(pool) || len(joiners) == 0 {
		return joiners, nil
	}
	names := make([]string, len(joiners))
	for i, joiner := range joiners {
		names[i] = joiner.Device
	}
	views, err := n.config.Ledger.Views(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("looking at devices for pool %s: %w", pool, err)
	}
	limited := n.config.Policies.Among(ctx, pool, views)
	var open []slots.Joiner
	for i, joiner := range joiners {
		if useOf(views[i], pool, limited) != slots.WaiterLeft {
			open = append(open, joiner)
		}
	}
	return open, nil
}

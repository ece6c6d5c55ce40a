package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// MostJudged is how many tasks are judged together: enough that a share of 1 % is seen.
const MostJudged = 500

// Waiting is what many tasks wait for.
type Waiting struct {
	Total  int64 // tasks that wait
	Judged int   // of these; fewer: the counts of Parts are those of a sample, brought up to the total
	Parts  []decision.Part
}

// WhyWaiting says what the tasks of a batch or a pool wait for, as Why says it of each. Where
// there are more than most, it judges a sample of so many. store.ErrNotFound.
func (d *Dispatcher) WhyWaiting(ctx context.Context, of store.WaitingOf, most int) (Waiting, error) {
	sample, err := d.config.Store.SampleWaiting(ctx, of, min(most, MostJudged))
	if err != nil {
		return Waiting{}, fmt.Errorf("explaining: %w", err)
	}
	judged := d.judge(ctx, sample.Views)
	if len(judged) == 0 { // all that waited began to run since it was counted
		return Waiting{}, nil
	}
	return Waiting{Total: sample.Total, Judged: len(judged), Parts: decision.Parts(judged, sample.Total)}, nil
}

// NextWaiting judges the next tasks that wait behind a mark, in the order of their batches: at
// most so many, and never more than MostJudged. more says that there are others behind
// them. store.ErrNotFound.
func (d *Dispatcher) NextWaiting(ctx context.Context, of store.WaitingOf, after store.LineMark, limit int) (judged []decision.Judged, more bool, err error) {
	found, err := d.config.Store.NextWaiting(ctx, of, after, min(limit, MostJudged))
	if err != nil {
		return nil, false, fmt.Errorf("explaining: %w", err)
	}
	return d.judge(ctx, found.Views), !found.All, nil
}

// judge explains tasks that wait, each as Why does. An answer that many of them share
// is asked for once.
func (d *Dispatcher) judge(ctx context.Context, views []store.TaskView) []decision.Judged {
	limited := d.Policies.OfEach(ctx, views)
	all := crowd{d: d, standings: make(map[string]decision.Standing), offers: make(map[string]map[string]time.Duration)}
	judged := make([]decision.Judged, len(views))
	for i, v := range views {
		judged[i] = decision.Judged{Task: v.Task, Cause: d.explain(ctx, v, limited[i], all.standing).Causes[0]}
	}
	return judged
}

// crowd asks the semaphore about the devices of many tasks. The batch that comes first
// depends on the batches alone, and inside of one the order is known.
type crowd struct {
	d         *Dispatcher
	standings map[string]decision.Standing        // by pool and batches, of those who were asked first
	offers    map[string]map[string]time.Duration // by pool and device
}

// standing has no position, and does not say when the device asks again.
func (c crowd) standing(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) decision.Standing {
	best := bestOfEach(tasks)
	key := []byte(pool)
	for _, one := range best {
		key = strconv.AppendInt(append(key, ' '), one.Batch, 10)
	}
	s, known := c.standings[string(key)]
	if !known {
		s = c.d.standingOf(ctx, pool, best, v)
		s.Position, s.InQueue, s.Due = 0, false, 0
		if first := slices.IndexFunc(best, func(one store.Candidate) bool { return one.Task == s.First }); first >= 0 {
			s.First = best[first].Batch // until it is known whose task it is
		}
		c.standings[string(key)] = s
	}
	if s.First != 0 {
		s.First = best[slices.IndexFunc(best, func(one store.Candidate) bool { return one.Batch == s.First })].Task
	}
	s.Offered = 0
	if s.Held+s.Left < s.Capacity {
		s.Offered = c.offered(ctx, pool)[v.Task.Device]
	}
	return s
}

// bestOfEach is the first task of each batch, by batch.
func bestOfEach(tasks []store.Candidate) []store.Candidate {
	sorted := slices.Clone(tasks)
	slices.SortStableFunc(sorted, func(a, b store.Candidate) int {
		switch {
		case decision.Sooner(a, b):
			return -1
		case decision.Sooner(b, a):
			return 1
		}
		return decision.Older(a, b)
	})
	return slices.CompactFunc(sorted, func(a, b store.Candidate) bool { return a.Batch == b.Batch })
}

// offered is for how long slots of a pool are kept for devices.
func (c crowd) offered(ctx context.Context, pool string) map[string]time.Duration {
	offers, known := c.offers[pool]
	if known {
		return offers
	}
	offers = make(map[string]time.Duration)
	snapshot, err := c.d.config.Semaphore.Snapshot(ctx, pool)
	if err != nil {
		c.d.log.WarnContext(ctx, "tasks explained without the offers", "pool", pool, "err", err)
	}
	for _, o := range snapshot.Reserved {
		offers[o.Device] = o.Left
	}
	c.offers[pool] = offers
	return offers
}

package dispatcher

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// MostJudged is the maximum number of tasks that one request evaluates. It is large enough to show a share of 1 %.
const MostJudged = 500

const (
	// judgeShare is the part of the remaining time that an evaluation may take. The rest is for the answer.
	judgeShare = 0.75
	// firstJudged is the number of tasks in the first step. Each later step has twice as many tasks as
	// the step before. A step that is not finished in time is dropped.
	firstJudged = 16
	// looksAtOnce limits the tasks that are evaluated concurrently: each may need a connection to Redis.
	looksAtOnce = 16
)

// Waiting summarizes why a set of tasks waits, grouped by reason.
type Waiting struct {
	Total  int64 // waiting tasks
	Judged int   // evaluated tasks; if it is less than Total, the counts of Parts are extrapolated to Total
	Parts  []decision.Part
}

// WhyWaiting evaluates the waiting tasks of a batch or a pool, each as Why does, and counts them by reason.
// If more than most tasks wait, it evaluates a sample. If the time of ctx runs out, it evaluates fewer tasks.
// Tasks are evaluated in random order, so fewer tasks are a fair sample too. It returns store.ErrNotFound if
// there is no such batch or pool.
func (x *Explainer) WhyWaiting(ctx context.Context, of store.WaitingOf, most int) (Waiting, error) {
	sample, err := x.ledger.SampleWaiting(ctx, of, min(most, MostJudged))
	if err != nil {
		return Waiting{}, fmt.Errorf("explaining: %w", err)
	}
	mathrand.Shuffle(len(sample.Views), func(i, j int) { sample.Views[i], sample.Views[j] = sample.Views[j], sample.Views[i] })
	judged, err := x.judge(ctx, sample.Views)
	if err != nil {
		return Waiting{}, fmt.Errorf("explaining: %w", err)
	}
	if len(judged) == 0 { // all tasks that waited have started since they were counted
		return Waiting{}, nil
	}
	// The sorting keeps the examples of an answer the same as long as the tasks are the same.
	slices.SortFunc(judged, func(a, b decision.Judged) int { return store.MarkOf(a.Task).Compare(store.MarkOf(b.Task)) })
	return Waiting{Total: sample.Total, Judged: len(judged), Parts: decision.Parts(judged, sample.Total)}, nil
}

// NextWaiting evaluates the next tasks that wait behind the mark after, in the order of their batches. It
// evaluates at most limit and at most MostJudged tasks, and fewer if the time of ctx runs out. more is true
// if more tasks wait behind them. It returns store.ErrNotFound if there is no such batch or pool.
func (x *Explainer) NextWaiting(ctx context.Context, of store.WaitingOf, after store.LineMark, limit int) (judged []decision.Judged, more bool, err error) {
	found, err := x.ledger.NextWaiting(ctx, of, after, min(limit, MostJudged))
	if err == nil {
		judged, err = x.judge(ctx, found.Views)
	}
	if err != nil {
		return nil, false, fmt.Errorf("explaining: %w", err)
	}
	return judged, !found.All || len(judged) < len(found.Views), nil
}

// judge explains waiting tasks, each as Why does, in the order of views. If the time runs out, it returns the
// tasks that are evaluated already. If there are no such tasks, it evaluates all tasks from the ledger alone.
func (x *Explainer) judge(ctx context.Context, views []store.TaskView) ([]decision.Judged, error) {
	within, cancel := deadline.Share(ctx, judgeShare)
	defer cancel()
	all := newCrowd(x)
	judged := make([]decision.Judged, 0, len(views))
	for step := firstJudged; len(judged) < len(views); step *= 2 {
		next := views[len(judged):min(len(judged)+step, len(views))]
		var done []decision.Judged
		err := rescue.Within(within, func() (err error) {
			answers, err := x.judgeStep(within, next, all)
			if err == nil && within.Err() == nil {
				done = answers
			}
			return err
		})
		if within.Err() != nil {
			break
		}
		if err != nil {
			return nil, x.panicked.Tell("judging tasks", err)
		}
		judged = append(judged, done...)
	}
	if len(judged) > 0 {
		return judged, nil
	}
	return x.judgeByLedger(ctx, views), ctx.Err()
}

// judgeStep explains tasks concurrently. A lookup that several tasks share is made once.
func (x *Explainer) judgeStep(ctx context.Context, views []store.TaskView, all *crowd) ([]decision.Judged, error) {
	limited := x.policies.OfEach(ctx, views)
	judged := make([]decision.Judged, len(views))
	var group rescue.Group
	group.SetLimit(looksAtOnce)
	for i, v := range views {
		group.Go(func() error {
			judged[i] = decision.Judged{Task: v.Task, Cause: x.explain(ctx, v, limited[i], all).Causes[0]}
			return nil
		})
	}
	return judged, group.Wait()
}

// judgeByLedger explains tasks without Redis, which did not answer in time.
func (x *Explainer) judgeByLedger(ctx context.Context, views []store.TaskView) []decision.Judged {
	judged := make([]decision.Judged, len(views))
	for i, v := range views {
		judged[i] = decision.Judged{Task: v.Task, Cause: x.explain(ctx, v, nil, noLookups{}).Causes[0]}
	}
	return judged
}

// crowd makes the lookups for many tasks that are evaluated concurrently. Tasks of the same pool and batches
// share one Standing. The order between batches depends on the batches alone, and the
// order inside a batch is that of priority and age.
type crowd struct {
	explainer *Explainer

	mu        sync.Mutex
	standings map[string]func() decision.Standing        // by pool and batches; looked up for the device of the first task
	offers    map[string]func() map[string]time.Duration // by pool; the time left of each offer, by device

	ledger sync.Mutex // held while the ledger is read, so that an evaluation uses one connection
}

func newCrowd(x *Explainer) *crowd {
	return &crowd{explainer: x, standings: make(map[string]func() decision.Standing), offers: make(map[string]func() map[string]time.Duration)}
}

// once returns the result of ask for a key. It calls ask for the first caller only.
func once[T any](c *crowd, known map[string]func() T, key string, ask func() T) T {
	c.mu.Lock()
	one := known[key]
	if one == nil {
		one = sync.OnceValue(ask)
		known[key] = one
	}
	c.mu.Unlock()
	return one()
}

// standing shares lookups. The Standing that it returns has neither a position nor the time of the next report.
func (c *crowd) standing(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) decision.Standing {
	best := bestOfEach(tasks)
	key := []byte(pool)
	for _, one := range best {
		key = strconv.AppendInt(append(key, ' '), one.Batch, 10)
	}
	s := once(c, c.standings, string(key), func() decision.Standing {
		s := c.explainer.standing(ctx, pool, best, v)
		s.Position, s.InQueue, s.Due = 0, false, 0
		if first := slices.IndexFunc(best, func(one store.Candidate) bool { return one.Task == s.First }); first >= 0 {
			s.First = best[first].Batch // the shared value names the batch; each caller replaces the batch by its own task below
		}
		return s
	})
	if s.First != 0 {
		s.First = best[slices.IndexFunc(best, func(one store.Candidate) bool { return one.Batch == s.First })].Task
	}
	s.Offered = 0
	if s.Held+s.Left < s.Capacity {
		s.Offered = c.offered(ctx, pool)[v.Task.Device]
	}
	return s
}

// callers reads the ledger for one task at a time.
func (c *crowd) callers(ctx context.Context, waiting store.Candidate) *store.Callers {
	c.ledger.Lock()
	defer c.ledger.Unlock()
	return c.explainer.callers(ctx, waiting)
}

// bestOfEach returns the first task of each batch, ordered by batch.
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

// offered returns the time left of each offer of a slot of a pool, by device.
func (c *crowd) offered(ctx context.Context, pool string) map[string]time.Duration {
	return once(c, c.offers, pool, func() map[string]time.Duration {
		snapshot, err := c.explainer.semaphore.Snapshot(ctx, pool)
		if err != nil {
			c.explainer.log.WarnContext(ctx, "tasks explained without the offers", "pool", pool, "err", err)
		}
		offers := make(map[string]time.Duration, len(snapshot.Reserved))
		for _, o := range snapshot.Reserved {
			offers[o.Device] = o.Left
		}
		return offers
	})
}

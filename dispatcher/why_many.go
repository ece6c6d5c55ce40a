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

// MostJudged is how many tasks are judged together: enough that a share of 1 % is seen.
const MostJudged = 500

const (
	// judgeShare is the part of the time left that judging may take. The rest is for the answer.
	judgeShare = 0.75
	// firstJudged is the number of tasks in the first step. Each later step has twice as many tasks as
	// the step before. A step that is not finished in time is dropped.
	firstJudged = 16
	// looksAtOnce limits the tasks that are judged concurrently: each may need a connection to Redis.
	looksAtOnce = 16
)

// Waiting says what many tasks wait for.
type Waiting struct {
	Total  int64 // tasks that wait
	Judged int   // tasks that were judged; if fewer than Total, the counts of Parts are those of a sample, brought up to Total
	Parts  []decision.Part
}

// WhyWaiting says what the tasks of a batch or a pool wait for, as Why says it of each. If
// there are more than most, it judges a sample. If the time of ctx runs out, it judges fewer:
// tasks are judged in random order, so these are a fair sample too. store.ErrNotFound.
func (d *Dispatcher) WhyWaiting(ctx context.Context, of store.WaitingOf, most int) (Waiting, error) {
	sample, err := d.config.Store.SampleWaiting(ctx, of, min(most, MostJudged))
	if err != nil {
		return Waiting{}, fmt.Errorf("explaining: %w", err)
	}
	mathrand.Shuffle(len(sample.Views), func(i, j int) { sample.Views[i], sample.Views[j] = sample.Views[j], sample.Views[i] })
	judged, err := d.judge(ctx, sample.Views)
	if err != nil {
		return Waiting{}, fmt.Errorf("explaining: %w", err)
	}
	if len(judged) == 0 { // all that waited began to run since it was counted
		return Waiting{}, nil
	}
	// The examples of an answer stay the same while the tasks do.
	slices.SortFunc(judged, func(a, b decision.Judged) int { return store.MarkOf(a.Task).Compare(store.MarkOf(b.Task)) })
	return Waiting{Total: sample.Total, Judged: len(judged), Parts: decision.Parts(judged, sample.Total)}, nil
}

// NextWaiting judges the next tasks that wait behind a mark, in the order of their batches: at
// most limit, never more than MostJudged, and fewer if the time of ctx runs out. more says that
// there are others behind them. store.ErrNotFound.
func (d *Dispatcher) NextWaiting(ctx context.Context, of store.WaitingOf, after store.LineMark, limit int) (judged []decision.Judged, more bool, err error) {
	found, err := d.config.Store.NextWaiting(ctx, of, after, min(limit, MostJudged))
	if err == nil {
		judged, err = d.judge(ctx, found.Views)
	}
	if err != nil {
		return nil, false, fmt.Errorf("explaining: %w", err)
	}
	return judged, !found.All || len(judged) < len(found.Views), nil
}

// judge explains tasks that wait, each as Why does, in their order. If the time runs out, it
// returns those that were judged by then. If there are none, it judges all by the ledger alone.
func (d *Dispatcher) judge(ctx context.Context, views []store.TaskView) ([]decision.Judged, error) {
	within, cancel := deadline.Share(ctx, judgeShare)
	defer cancel()
	all := newCrowd(d)
	judged := make([]decision.Judged, 0, len(views))
	for step := firstJudged; len(judged) < len(views); step *= 2 {
		next := views[len(judged):min(len(judged)+step, len(views))]
		var done []decision.Judged
		err := rescue.Within(within, func() (err error) {
			answers, err := d.judgeStep(within, next, all)
			if err == nil && within.Err() == nil {
				done = answers
			}
			return err
		})
		if within.Err() != nil {
			break
		}
		if err != nil {
			return nil, rescue.Told(d.Panicked).Tell("judging tasks", err)
		}
		judged = append(judged, done...)
	}
	if len(judged) > 0 {
		return judged, nil
	}
	return d.judgeByLedger(ctx, views), ctx.Err()
}

// judgeStep explains tasks concurrently. A lookup that several of them share is made once.
func (d *Dispatcher) judgeStep(ctx context.Context, views []store.TaskView, all *crowd) ([]decision.Judged, error) {
	limited := d.Policies.OfEach(ctx, views)
	judged := make([]decision.Judged, len(views))
	var group rescue.Group
	group.SetLimit(looksAtOnce)
	for i, v := range views {
		group.Go(func() error {
			judged[i] = decision.Judged{Task: v.Task, Cause: d.explain(ctx, v, limited[i], besides{all.standing, all.callers}).Causes[0]}
			return nil
		})
	}
	return judged, group.Wait()
}

// judgeByLedger explains tasks without asking Redis, which did not answer in time.
func (d *Dispatcher) judgeByLedger(ctx context.Context, views []store.TaskView) []decision.Judged {
	judged := make([]decision.Judged, len(views))
	for i, v := range views {
		judged[i] = decision.Judged{Task: v.Task, Cause: d.explain(ctx, v, nil, withoutRedis()).Causes[0]}
	}
	return judged
}

// crowd makes the lookups for many tasks that are judged concurrently. The batch that comes
// first depends on the batches alone, and inside of one the order is known.
type crowd struct {
	d *Dispatcher

	mu        sync.Mutex
	standings map[string]func() decision.Standing        // by pool and batches, of the device that was asked about first
	offers    map[string]func() map[string]time.Duration // by pool and device

	ledger sync.Mutex // held while the ledger is read: a judgement uses one connection
}

func newCrowd(d *Dispatcher) *crowd {
	return &crowd{d: d, standings: make(map[string]func() decision.Standing), offers: make(map[string]func() map[string]time.Duration)}
}

// once returns what ask returns for a key. It calls ask for the first caller only.
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

// standing has no position, and does not say when the device asks again.
func (c *crowd) standing(ctx context.Context, pool string, tasks []store.Candidate, v store.TaskView) decision.Standing {
	best := bestOfEach(tasks)
	key := []byte(pool)
	for _, one := range best {
		key = strconv.AppendInt(append(key, ' '), one.Batch, 10)
	}
	s := once(c, c.standings, string(key), func() decision.Standing {
		s := c.d.standingOf(ctx, pool, best, v)
		s.Position, s.InQueue, s.Due = 0, false, 0
		if first := slices.IndexFunc(best, func(one store.Candidate) bool { return one.Task == s.First }); first >= 0 {
			s.First = best[first].Batch // until it is known whose task it is
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

// callers returns the position of a task among the callers before it; nil: unknown.
func (c *crowd) callers(ctx context.Context, waiting store.Candidate) *store.Callers {
	c.ledger.Lock()
	defer c.ledger.Unlock()
	return c.d.callersBefore(ctx, waiting)
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

// offered returns for how long slots of a pool are kept for devices.
func (c *crowd) offered(ctx context.Context, pool string) map[string]time.Duration {
	return once(c, c.offers, pool, func() map[string]time.Duration {
		snapshot, err := c.d.config.Semaphore.Snapshot(ctx, pool)
		if err != nil {
			c.d.log.WarnContext(ctx, "tasks explained without the offers", "pool", pool, "err", err)
		}
		offers := make(map[string]time.Duration, len(snapshot.Reserved))
		for _, o := range snapshot.Reserved {
			offers[o.Device] = o.Left
		}
		return offers
	})
}

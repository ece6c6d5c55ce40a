package dispatcher

import (
	"context"
	"log/slog"
	"sync"
)

// errands are done beside the reports that gave rise to them, so that no device
// waits for what concerns another one.
type errands struct {
	log *slog.Logger
	ctx context.Context //nolint:containedctx // theirs: they outlive the reports

	mu      sync.Mutex
	stopped bool
	wait    sync.WaitGroup
}

func newErrands(log *slog.Logger) *errands {
	return &errands{log: log, ctx: context.Background()}
}

// start does nothing once errands are stopped: the other replicas' passes find
// what is left.
func (e *errands) start(run func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return
	}
	e.wait.Go(func() {
		defer func() {
			if cause := recover(); cause != nil {
				e.log.Error("handing on panicked", "panic", cause)
			}
		}()
		run(e.ctx)
	})
}

// stop waits for those under way, as long as ctx allows.
func (e *errands) stop(ctx context.Context) error {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	done := make(chan struct{})
	go func() {
		e.wait.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turns lets one at a time work for a pool. What comes up meanwhile is merged,
// and done by whoever has the turn.
type turns[W any] struct {
	merge func(earlier, more W) W

	mu    sync.Mutex
	taken map[string]*W // work left, of pools whose turn is taken; nil: none is
}

func newTurns[W any](merge func(earlier, more W) W) *turns[W] {
	return &turns[W]{merge: merge, taken: make(map[string]*W)}
}

// add says whether the caller has the turn: then it is to do what next gives it.
func (t *turns[W]) add(pool string, work W) (mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left, taken := t.taken[pool]
	if left != nil {
		work = t.merge(*left, work)
	}
	t.taken[pool] = &work
	return !taken
}

// next is what is left to do; without any the turn is over.
func (t *turns[W]) next(pool string) (work W, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.taken[pool]
	if left == nil {
		delete(t.taken, pool)
		return work, false
	}
	t.taken[pool] = nil
	return *left, true
}

package waiters

import (
	"context"
	"errors"
	"sync"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// background is the work that is done beside the reports that gave rise to it, so that
// no device waits for what concerns another one.
type background struct {
	ctx context.Context //nolint:containedctx // its own: it outlives the reports

	mu      sync.Mutex
	stopped bool
	wait    rescue.Crew
}

func newBackground(panicked rescue.Told) *background {
	return &background{ctx: context.Background(), wait: rescue.Crew{Told: panicked}}
}

// start does nothing once it is stopped: the other replicas' passes find
// what is left.
func (b *background) start(run func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	b.wait.Go("handing on", func() { run(b.ctx) })
}

// stop waits for those under way, as long as ctx allows.
func (b *background) stop(ctx context.Context) error {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	return b.wait.WaitWithin(ctx) //nolint:wrapcheck // the context's own
}

// serial lets one at a time work for a pool. Work that comes up meanwhile is
// merged, and done by the one that is at work.
type serial[W any] struct {
	merge func(earlier, more W) W

	mu    sync.Mutex
	taken map[string]*W // work left, of pools that somebody works for; nil: none is
}

func newSerial[W any](merge func(earlier, more W) W) *serial[W] {
	return &serial[W]{merge: merge, taken: make(map[string]*W)}
}

// add says whether nobody works for the pool: then the caller is to run the work.
func (t *serial[W]) add(pool string, work W) (mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left, taken := t.taken[pool]
	if left != nil {
		work = t.merge(*left, work)
	}
	t.taken[pool] = &work
	return !taken
}

// run does what is left, until nothing is. A panic is an error, after which the
// rest is done: nobody else would ever do it.
func (t *serial[W]) run(pool string, do func(W) error) (failed error) {
	for work, ok := t.next(pool); ok; work, ok = t.next(pool) {
		failed = errors.Join(failed, rescue.Call(func() error { return do(work) }))
	}
	return failed
}

// next is what is left to do; without any the caller is done.
func (t *serial[W]) next(pool string) (work W, ok bool) {
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

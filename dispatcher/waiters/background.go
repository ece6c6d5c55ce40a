package waiters

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// background runs work in goroutines of its own. The answer to the report that caused the work does not wait for the work.
type background struct {
	ctx context.Context //nolint:containedctx // it outlives the contexts of the reports

	mu      sync.Mutex
	stopped bool
	crew    rescue.ReportingGroup
}

// start runs work in a new goroutine. After stop was called, start does nothing, and the passes of other replicas do the work.
func (b *background) start(runWork func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	b.crew.Go("handing off slots", func() { runWork(b.ctx) })
}

// stop makes start do nothing, and waits until the running work has ended or ctx ends.
func (b *background) stop(ctx context.Context) error {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	return b.crew.WaitWithin(ctx)
}

// mergedWork runs work for pools in the background, with at most one goroutine for each pool. Work that is added while the goroutine of the
// pool is busy is merged, and done next.
type mergedWork[W any] struct {
	background *background
	log        *slog.Logger
	merge      func(earlier, more W) W
	runWork    func(ctx context.Context, pool string, work W) error
	doing      string // names the work in the report of a panic
	warning    string // message that is logged if the work fails in the background

	mu   sync.Mutex
	left map[string]*W // by pool; has an entry while a goroutine works for the pool: the remaining work, or nil if there is none
}

// start adds work for the pool, and starts a goroutine unless one works for the pool.
func (m *mergedWork[W]) start(pool string, addedWork W) {
	if m.add(pool, addedWork) {
		m.background.start(func(ctx context.Context) {
			if err := m.background.crew.OnPanic.Report(m.doing, m.run(ctx, pool)); err != nil {
				m.log.WarnContext(ctx, m.warning, "pool", pool, "err", err) //nolint:sloglint // a constant of each kind of work
			}
		})
	}
}

// add adds work for the pool. If mustRun is true, no goroutine works for the pool, and the caller must call run.
func (m *mergedWork[W]) add(pool string, addedWork W) (mustRun bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == nil {
		m.left = make(map[string]*W)
	}
	left, taken := m.left[pool]
	if left != nil {
		addedWork = m.merge(*left, addedWork)
	}
	m.left[pool] = &addedWork
	return !taken
}

// run does the work of the pool until none remains. If the work panics, run continues, because no other goroutine would do the remaining
// work. Then failed includes the panic.
func (m *mergedWork[W]) run(ctx context.Context, pool string) (failed error) {
	for work, ok := m.takeNext(pool); ok; work, ok = m.takeNext(pool) {
		failed = errors.Join(failed, rescue.Call(func() error { return m.runWork(ctx, pool, work) }))
	}
	return failed
}

// takeNext removes and returns the remaining work of the pool. If ok is false, the goroutine must end.
func (m *mergedWork[W]) takeNext(pool string) (work W, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.left[pool]
	if left == nil {
		delete(m.left, pool)
		return work, false
	}
	m.left[pool] = nil
	return *left, true
}

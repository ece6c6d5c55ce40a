package dispatcher_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

var errDown = errors.New("down for the test")

// spies wraps the stores of a dispatcher. It counts calls, and a test can run code before and after each
// call, or make it fail.
type spies struct {
	dispatcher.Store
	dispatcher.Semaphore
	longest atomic.Int64 // Period of the latest Pace
	asked   atomic.Int64 // number of completed requests for slots

	mu       sync.Mutex
	hooks    map[string]func() error // keys such as "before Claim"
	answered map[string]int
}

// spied returns a light bench with spies.
func spied(t *testing.T, changes ...func(*dispatcher.Config)) (*bench, *spies) {
	t.Helper()
	s := &spies{}
	return light(t, append(changes, s.config)...), s
}

func (s *spies) config(c *dispatcher.Config) {
	s.hooks, s.answered = make(map[string]func() error), make(map[string]int)
	s.Store, s.Semaphore = c.Store, c.Semaphore
	c.Store, c.Semaphore = s, s
}

func (s *spies) hook(at string, do func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[at] = do
}

func (s *spies) before(call string, do func()) {
	s.hook("before "+call, func() error { do(); return nil })
}

func (s *spies) after(call string, do func()) {
	s.hook("after "+call, func() error { do(); return nil })
}

// down makes calls fail without an effect.
func (s *spies) down(calls ...string) {
	for _, call := range calls {
		s.hook("before "+call, func() error { return errDown })
	}
}

// fails makes a call take effect and then return err.
func (s *spies) fails(call string, err error) {
	s.hook("after "+call, func() error { return err })
}

// ease removes all hooks.
func (s *spies) ease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.hooks)
}

// answers returns the number of completed calls since the last call of answers.
func (s *spies) answers(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.answered, call)
	return s.answered[call]
}

func (s *spies) run(at string) error {
	s.mu.Lock()
	do := s.hooks[at]
	s.mu.Unlock()
	if do == nil {
		return nil
	}
	return do()
}

// pass runs a call with its hooks.
func (s *spies) pass(call string, through func() error) error {
	if err := s.run("before " + call); err != nil {
		return err
	}
	err := errors.Join(through(), s.run("after "+call))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered[call]++
	return err
}

// give runs a call that returns one value with its hooks.
func give[T any](s *spies, call string, through func() (T, error)) (out T, err error) {
	err = s.pass(call, func() error {
		out, err = through()
		return err
	})
	return out, err
}

func (s *spies) Claim(ctx context.Context, claims []store.Claim, wait bool) ([]store.ClaimOutcome, error) {
	return give(s, "Claim", func() ([]store.ClaimOutcome, error) { return s.Store.Claim(ctx, claims, wait) })
}

func (s *spies) Views(ctx context.Context, devices []string) ([]store.View, error) {
	return give(s, "Views", func() ([]store.View, error) { return s.Store.Views(ctx, devices) })
}

func (s *spies) Renew(ctx context.Context, renewals []store.Renewal) ([]store.RenewalOutcome, error) {
	return give(s, "Renew", func() ([]store.RenewalOutcome, error) { return s.Store.Renew(ctx, renewals) })
}

func (s *spies) Redeliver(ctx context.Context, task, token int64) (store.Grant, error) {
	return give(s, "Redeliver", func() (store.Grant, error) { return s.Store.Redeliver(ctx, task, token) })
}

func (s *spies) Task(ctx context.Context, id int64) (task store.Task, grant *store.Grant, attempts []store.Attempt, err error) {
	err = s.pass("Task", func() (err error) {
		task, grant, attempts, err = s.Store.Task(ctx, id)
		return err
	})
	return task, grant, attempts, err
}

func (s *spies) NextCallers(ctx context.Context, pool string, limit int) ([]string, error) {
	return give(s, "NextCallers", func() ([]string, error) { return s.Store.NextCallers(ctx, pool, limit) })
}

func (s *spies) CallersBefore(ctx context.Context, pool string, task int64) (store.Callers, error) {
	return give(s, "CallersBefore", func() (store.Callers, error) { return s.Store.CallersBefore(ctx, pool, task) })
}

func (s *spies) GiveUpLease(ctx context.Context, actor string, task int64) (bool, error) {
	return give(s, "GiveUpLease", func() (bool, error) { return s.Store.GiveUpLease(ctx, actor, task) })
}

func (s *spies) Pool(ctx context.Context, name string) (store.Pool, error) {
	return give(s, "Pool", func() (store.Pool, error) { return s.Store.Pool(ctx, name) })
}

func (s *spies) Reap(ctx context.Context, lapses store.Lapses, limit int, settle store.Settle) ([]store.Reaped, error) {
	return give(s, "Reap", func() ([]store.Reaped, error) { return s.Store.Reap(ctx, lapses, limit, settle) })
}

func (s *spies) AskCancel(ctx context.Context, task, token int64, why string) error {
	return s.pass("AskCancel", func() error { return s.Store.AskCancel(ctx, task, token, why) })
}

func (s *spies) RecordResults(ctx context.Context, results []store.Result, settle store.Settle) []store.ResultOutcome {
	outcomes := make([]store.ResultOutcome, len(results))
	err := s.pass("RecordResults", func() error {
		outcomes = s.Store.RecordResults(ctx, results, settle)
		return nil
	})
	for i := range outcomes {
		outcomes[i].Err = errors.Join(outcomes[i].Err, err)
	}
	return outcomes
}

func (s *spies) Serve(ctx context.Context, calls []slots.Call) []slots.Served {
	served := make([]slots.Served, len(calls))
	for i, c := range calls {
		served[i] = s.serve(ctx, c)
	}
	return served
}

// serve counts as Acquire if c requests a slot, and as Release if c frees a slot.
func (s *spies) serve(ctx context.Context, c slots.Call) (done slots.Served) {
	through := func() error {
		done = s.Semaphore.Serve(ctx, []slots.Call{c})[0]
		return done.Err
	}
	if len(c.Leases) > 0 {
		serve := through
		through = func() error { return s.pass("Release", serve) }
	}
	if len(c.Requests) > 0 {
		s.longest.Store(int64(c.Pace.Period))
		defer func() { s.asked.Add(int64(len(c.Requests))) }()
		serve := through
		through = func() error { return s.pass("Acquire", serve) }
	}
	done.Err = through()
	return done
}

func (s *spies) Restore(ctx context.Context, pool string, c slots.Config, held []slots.Holding) (bool, error) {
	return give(s, "Restore", func() (bool, error) { return s.Semaphore.Restore(ctx, pool, c, held) })
}

func (s *spies) Adopt(ctx context.Context, pool string, holders []slots.Holding) ([]bool, error) {
	return give(s, "Adopt", func() ([]bool, error) { return s.Semaphore.Adopt(ctx, pool, holders) })
}

func (s *spies) Standing(ctx context.Context, pool, device string, w []slots.Waiter) (slots.Standing, error) {
	return give(s, "Standing", func() (slots.Standing, error) { return s.Semaphore.Standing(ctx, pool, device, w) })
}

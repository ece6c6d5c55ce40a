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

// storeSpies wraps the stores of a dispatcher. It counts their calls. A test can run code before and after each
// call, or make a call fail.
type storeSpies struct {
	dispatcher.Store
	dispatcher.Semaphore
	lastPeriod   atomic.Int64 // Period of the latest Pace
	slotRequests atomic.Int64 // number of completed requests for slots

	mu             sync.Mutex
	hooks          map[string]func() error // keys such as "before Claim"
	completedCalls map[string]int
}

// newSpiedBench returns a light bench whose stores are wrapped in spies.
func newSpiedBench(t *testing.T, changes ...func(*dispatcher.Config)) (*testBench, *storeSpies) {
	t.Helper()
	s := &storeSpies{}
	return newLightBench(t, append(changes, s.configure)...), s
}

func (s *storeSpies) configure(c *dispatcher.Config) {
	s.hooks, s.completedCalls = make(map[string]func() error), make(map[string]int)
	s.Store, s.Semaphore = c.Store, c.Semaphore
	c.Store, c.Semaphore = s, s
}

func (s *storeSpies) setHook(point string, action func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[point] = action
}

func (s *storeSpies) runBefore(call string, action func()) {
	s.setHook("before "+call, func() error { action(); return nil })
}

func (s *storeSpies) runAfter(call string, action func()) {
	s.setHook("after "+call, func() error { action(); return nil })
}

// failCalls makes these calls fail before they have an effect.
func (s *storeSpies) failCalls(calls ...string) {
	for _, call := range calls {
		s.setHook("before "+call, func() error { return errDown })
	}
}

// failAfter lets a call take effect and then return err.
func (s *storeSpies) failAfter(call string, err error) {
	s.setHook("after "+call, func() error { return err })
}

func (s *storeSpies) removeHooks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.hooks)
}

// takeCallCount returns how many calls of this name were completed since the last call of takeCallCount.
func (s *storeSpies) takeCallCount(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.completedCalls, call)
	return s.completedCalls[call]
}

func (s *storeSpies) runHook(point string) error {
	s.mu.Lock()
	do := s.hooks[point]
	s.mu.Unlock()
	if do == nil {
		return nil
	}
	return do()
}

// runCall runs the hooks of a call and the call itself.
func (s *storeSpies) runCall(call string, invoke func() error) error {
	if err := s.runHook("before " + call); err != nil {
		return err
	}
	err := errors.Join(invoke(), s.runHook("after "+call))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.completedCalls[call]++
	return err
}

// callWithHooks is runCall for a call that returns a value.
func callWithHooks[T any](s *storeSpies, call string, invoke func() (T, error)) (out T, err error) {
	err = s.runCall(call, func() error {
		out, err = invoke()
		return err
	})
	return out, err
}

func (s *storeSpies) Claim(ctx context.Context, claims []store.Claim, wait bool) ([]store.ClaimOutcome, error) {
	return callWithHooks(s, "Claim", func() ([]store.ClaimOutcome, error) { return s.Store.Claim(ctx, claims, wait) })
}

func (s *storeSpies) DeviceViews(ctx context.Context, devices []string) ([]store.DeviceView, error) {
	return callWithHooks(s, "Views", func() ([]store.DeviceView, error) { return s.Store.DeviceViews(ctx, devices) })
}

func (s *storeSpies) DeviceRegistrations(ctx context.Context, devices []string) ([]store.DeviceView, error) {
	return callWithHooks(s, "Registrations", func() ([]store.DeviceView, error) { return s.Store.DeviceRegistrations(ctx, devices) })
}

func (s *storeSpies) Renew(ctx context.Context, renewals []store.Renewal) ([]store.RenewalOutcome, error) {
	return callWithHooks(s, "Renew", func() ([]store.RenewalOutcome, error) { return s.Store.Renew(ctx, renewals) })
}

func (s *storeSpies) Redeliver(ctx context.Context, task, token int64) (store.Grant, error) {
	return callWithHooks(s, "Redeliver", func() (store.Grant, error) { return s.Store.Redeliver(ctx, task, token) })
}

func (s *storeSpies) Task(ctx context.Context, id int64) (task store.Task, grant *store.Grant, attempts []store.Attempt, err error) {
	err = s.runCall("Task", func() (err error) {
		task, grant, attempts, err = s.Store.Task(ctx, id)
		return err
	})
	return task, grant, attempts, err
}

func (s *storeSpies) NextCallers(ctx context.Context, pool string, limit int) ([]string, error) {
	return callWithHooks(s, "NextCallers", func() ([]string, error) { return s.Store.NextCallers(ctx, pool, limit) })
}

func (s *storeSpies) CallerBoundOf(ctx context.Context, pool string, task int64) (store.CallerBound, error) {
	return callWithHooks(s, "CallerBoundOf", func() (store.CallerBound, error) { return s.Store.CallerBoundOf(ctx, pool, task) })
}

func (s *storeSpies) GiveUpLease(ctx context.Context, actor string, task int64) (bool, error) {
	return callWithHooks(s, "GiveUpLease", func() (bool, error) { return s.Store.GiveUpLease(ctx, actor, task) })
}

func (s *storeSpies) Pool(ctx context.Context, name string) (store.Pool, error) {
	return callWithHooks(s, "Pool", func() (store.Pool, error) { return s.Store.Pool(ctx, name) })
}

func (s *storeSpies) Reap(ctx context.Context, lapses store.LapseCutoffs, limit int, settle store.DecideTaskState) ([]store.Reaped, error) {
	return callWithHooks(s, "Reap", func() ([]store.Reaped, error) { return s.Store.Reap(ctx, lapses, limit, settle) })
}

func (s *storeSpies) AskCancel(ctx context.Context, task, token int64, why string) error {
	return s.runCall("AskCancel", func() error { return s.Store.AskCancel(ctx, task, token, why) })
}

func (s *storeSpies) RecordResults(ctx context.Context, results []store.Result, settle store.DecideTaskState) []store.ResultOutcome {
	outcomes := make([]store.ResultOutcome, len(results))
	err := s.runCall("RecordResults", func() error {
		outcomes = s.Store.RecordResults(ctx, results, settle)
		return nil
	})
	for i := range outcomes {
		outcomes[i].Err = errors.Join(outcomes[i].Err, err)
	}
	return outcomes
}

func (s *storeSpies) Serve(ctx context.Context, calls []slots.Call) []slots.ExchangeResult {
	served := make([]slots.ExchangeResult, len(calls))
	for i, c := range calls {
		served[i] = s.serveOne(ctx, c)
	}
	return served
}

// serveOne runs a call of the semaphore. It counts as Acquire if c requests a slot, and as Release if c frees a
// slot.
func (s *storeSpies) serveOne(ctx context.Context, c slots.Call) (done slots.ExchangeResult) {
	through := func() error {
		done = s.Semaphore.Serve(ctx, []slots.Call{c})[0]
		return done.Err
	}
	if len(c.Leases) > 0 {
		serve := through
		through = func() error { return s.runCall("Release", serve) }
	}
	if len(c.Requests) > 0 {
		s.lastPeriod.Store(int64(c.Pace.ReportPeriod))
		defer func() { s.slotRequests.Add(int64(len(c.Requests))) }()
		serve := through
		through = func() error { return s.runCall("Acquire", serve) }
	}
	done.Err = through()
	return done
}

func (s *storeSpies) Restore(ctx context.Context, pool string, c slots.Config, held []slots.LedgerGrant) (bool, error) {
	return callWithHooks(s, "Restore", func() (bool, error) { return s.Semaphore.Restore(ctx, pool, c, held) })
}

func (s *storeSpies) Adopt(ctx context.Context, pool string, holders []slots.LedgerGrant) ([]bool, error) {
	return callWithHooks(s, "Adopt", func() ([]bool, error) { return s.Semaphore.Adopt(ctx, pool, holders) })
}

func (s *storeSpies) ReadQueuePlaces(ctx context.Context, pool, device string, w []slots.Want) (slots.QueuePlaces, error) {
	return callWithHooks(s, "ReadQueuePlaces", func() (slots.QueuePlaces, error) { return s.Semaphore.ReadQueuePlaces(ctx, pool, device, w) })
}

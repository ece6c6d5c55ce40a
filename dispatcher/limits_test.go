package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

const (
	oneAnHourPerAccount = `[{"name":"per-account","per":"tags.account","algorithm":"sliding","windows":[{"max":1,"per_ms":3600000}]}]`
	twoDuplicatesAnHour = `[{"name":"same-content","algorithm":"duplicate","per_ms":3600000,"max":2}]`
)

// createLimitedPool creates pool "a", in which each account may start one task an hour.
func (b *testBench) createLimitedPool(capacity int) {
	b.t.Helper()
	_, _, err := b.store.PutPool(b.ctx, "test", "a", store.PoolSpec{Capacity: capacity, Lease: time.Minute, Limits: json.RawMessage(oneAnHourPerAccount)})
	b.must(err)
}

// createAccountDevice registers a device that belongs to this account.
func (b *testBench) createAccountDevice(id, account string) {
	b.t.Helper()
	_, err := b.store.CreateDevice(b.ctx, "test", id, store.DeviceSpec{Tags: map[string]string{"account": account}}, []byte(id), nil)
	b.must(err)
}

// TestALimitedDeviceIsToldWhenAndHoldsNoSlot checks a device whose account has used up a policy. The device is refused
// with the time at which it may start, holds no slot, and is granted tasks that are not limited. `why` shows the
// policy, the window and the time.
func TestALimitedDeviceIsToldWhenAndHoldsNoSlot(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(9)
		b.createPool("free", 9, time.Minute)
		for _, d := range []string{"d1", "d2", "d3"} {
			b.createAccountDevice(d, map[string]string{"d1": "x", "d2": "x", "d3": "y"}[d])
		}
		b.createBatch("a", nil, "d1", "d2", "d3")
		first := b.expectGrant("d1")
		reply := b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		if reply.ReportAfterMS < 1000 || reply.ReportAfterMS > 12*60_000 {
			b.t.Errorf("report after %d ms", reply.ReportAfterMS)
		}
		b.expectHeld(1)
		b.expectGrant("d3") // a device of another account
		waiting := b.deviceTaskIDs("d2")[0]
		e := b.expectWhy(waiting, []decision.Code{decision.CodeLimited}, "per-account", "pool a", "1 per 1h0m0s", "tags.account=x")
		if wait := e.Causes[0].Until.Sub(e.At); wait < 50*time.Minute || wait > time.Hour {
			b.t.Errorf("until in %s", wait)
		}
		b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
		b.expectReason("d2", `{"id":"2"}`, devices.ReasonLimited)
		b.createBatch("free", nil, "d2")
		if got := b.expectGrant("d2"); got.Pool != "free" {
			b.t.Errorf("granted of pool %s", got.Pool)
		}
		top, err := b.Policies.TopRefused(b.ctx, "a", 5)
		if err != nil || len(top) != 1 || top[0].Subject != "tags.account=x" || top[0].RefusalCount < 2 {
			b.t.Errorf("top: %+v, %v", top, err)
		}
	}, withLongPeriod)
}

// TestRefusalsAreFree checks a start that is refused because the pool is full: no policy counts it.
func TestRefusalsAreFree(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(1)
		b.createAccountDevice("d1", "x")
		b.createAccountDevice("d2", "y")
		b.createBatch("a", nil, "d1", "d2")
		task := b.expectGrant("d1")
		for range 3 {
			b.expectReason("d2", `{"id":"1"}`, devices.ReasonFull)
		}
		b.sendResult("d1", task, "succeeded", "", devices.OutcomeRecorded)
		b.expectGrant("d2")
		if n, err := b.redis.ZCard(b.ctx, "limits:{a}:open").Result(); err != nil || n != 0 {
			b.t.Errorf("%d reservations are open, %v", n, err)
		}
	}, withLongPeriod)
}

// TestDuplicatesWait checks a duplicate policy: tasks with equal content wait, and a task with other content does
// not wait behind them.
func TestDuplicatesWait(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, time.Minute)
		b.createAccountDevice("d1", "x")
		payloads := []string{`{"n":1, "m":2}`, `{"m":2,"n":1}`, `{"n":1,"m":2}`, `{"n":2}`}
		_, err := b.store.CreateBatch(b.ctx, "test", store.Batch{Pool: "a", Kind: "pay", Weight: 1, MaxAttempts: 1, Limits: json.RawMessage(twoDuplicatesAnHour)},
			store.NewBatchTasks{Tasks: func(yield func(store.NewTask, error) bool) {
				for _, p := range payloads {
					if !yield(store.NewTask{Device: "d1", Payload: json.RawMessage(p)}, nil) {
						return
					}
				}
			}})
		b.must(err)
		var done []string
		for range 3 {
			task := b.expectGrant("d1")
			done = append(done, string(task.Payload))
			b.sendResult("d1", task, "succeeded", "", devices.OutcomeRecorded)
		}
		if !slices.Equal(done, []string{payloads[0], payloads[1], payloads[3]}) {
			b.t.Errorf("granted %q", done)
		}
		b.expectReason("d1", `{"id":"1"}`, devices.ReasonLimited)
		b.expectWhy(b.deviceTaskIDs("d1")[2], []decision.Code{decision.CodeLimited}, "same-content", "2 equal ones per 1h0m0s", "the oldest counted start was at")
	}, withLongPeriod)
}

// TestLimitsSurviveRedis checks a Redis that has lost all data: the starts that the ledger has still count.
func TestLimitsSurviveRedis(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(9)
		for i, d := range []string{"d1", "d2", "d3", "d4"} {
			b.createAccountDevice(d, []string{"x", "x", "y", "y"}[i])
		}
		b.createBatch("a", nil, "d1", "d2", "d3", "d4")
		b.sendResult("d1", b.expectGrant("d1"), "succeeded", "", devices.OutcomeRecorded) // d1: an ended attempt
		b.expectGrant("d3")                                                               // d3: a grant in force
		b.wipeRedis(9)
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		b.expectReason("d4", `{"id":"1"}`, devices.ReasonLimited)
	}, withLongPeriod)
}

// TestPolicyOfARunningPool checks that a policy that is added to a running pool counts earlier starts, too.
func TestPolicyOfARunningPool(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, time.Minute)
		b.createAccountDevice("d1", "x")
		b.createAccountDevice("d2", "x")
		b.createBatch("a", nil, "d1", "d2")
		b.expectGrant("d1")
		b.changePool("", func(p *store.PoolSpec) { p.Limits = json.RawMessage(oneAnHourPerAccount) })
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		b.changePool("", func(p *store.PoolSpec) {
			p.Limits = json.RawMessage(strings.Replace(oneAnHourPerAccount, `"max":1`, `"max":2`, 1))
		})
		b.expectGrant("d2")
	}, withLongPeriod)
}

// lossyReservations is a limiter whose Settle fails while failsSettle is true, as if the replica had died before
// the call. While isDown is true, Reserve fails, too.
type lossyReservations struct {
	policies.Reservations

	failsSettle  atomic.Bool
	isDown       atomic.Bool
	reserveCalls atomic.Int64
}

func (l *lossyReservations) Settle(ctx context.Context, pool string, started limits.Check, others []limits.Check) error {
	if l.failsSettle.Load() || l.isDown.Load() {
		return errors.New("lost")
	}
	return l.Reservations.Settle(ctx, pool, started, others)
}

func (l *lossyReservations) Reserve(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error) {
	l.reserveCalls.Add(1)
	if l.isDown.Load() {
		return nil, limits.ErrUnavailable
	}
	return l.Reservations.Reserve(ctx, pool, checks)
}

// useLossyReservations is a configuration of a bench: the dispatcher uses lossyReservations as its limiter.
func useLossyReservations(c *dispatcher.Config) {
	c.Limits.Reservations = &lossyReservations{Reservations: c.Limits.Reservations}
}

// lossyFake returns the lossyReservations of a bench with the configuration useLossyReservations.
func (b *testBench) lossyFake() *lossyReservations {
	b.t.Helper()
	loses, ok := b.limits.Reservations.(*lossyReservations)
	if !ok {
		b.t.Fatal("other reservations")
	}
	return loses
}

// TestWhatNobodyCounted checks a start that its replica did not settle. A pass of any replica counts it. Until then
// its open reservation refuses further starts.
func TestWhatNobodyCounted(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		loses := b.lossyFake()
		b.createLimitedPool(9)
		b.createAccountDevice("d1", "x")
		b.createAccountDevice("d2", "x")
		b.createBatch("a", nil, "d1", "d2")
		loses.failsSettle.Store(true)
		b.expectGrant("d1")
		for range 2 {
			b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
			if done, err := b.Policies.SettleAllReservations(b.ctx); err != nil || done.Pools != 1 || done.Counted != 1 {
				b.t.Errorf("settled %+v, %v", done, err)
			}
		}
		if e := b.explainTask(b.deviceTaskIDs("d2")[0]); e.Causes[0].Until.Sub(e.At) < 50*time.Minute {
			b.t.Errorf("not counted: %+v", e.Causes)
		}
	}, withLongPeriod, useLossyReservations)
}

// TestNoPoliciesCostNothing checks tasks to which no policies apply: the limiter is not called.
func TestNoPoliciesCostNothing(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, time.Minute)
		b.createBatch("a", nil, "d1")
		b.expectGrant("d1") // granted by a dispatcher without a limiter
	}, func(c *dispatcher.Config) { c.Limits = nil })
}

// TestPoliciesThatCannotBeAsked checks a task whose policies cannot be checked: it waits, unless the policies have
// on_error: open.
func TestPoliciesThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(9)
		b.createAccountDevice("d1", "x")
		b.createBatch("a", nil, "d1")
		b.expectReason("d1", `{"id":"1"}`, devices.ReasonUnavailable)
		b.expectWhy(b.deviceTaskIDs("d1")[0], []decision.Code{decision.CodeUnavailable}, "policies")
		b.changePool("", func(p *store.PoolSpec) {
			p.Limits = json.RawMessage(strings.Replace(oneAnHourPerAccount, `"per":`, `"on_error":"open","per":`, 1))
		})
		b.expectGrant("d1")
	}, withLongPeriod, func(c *dispatcher.Config) { c.Limits = nil })
}

// newLimitsReplica returns another dispatcher (replica) on the same servers. It has a limiter of its own.
func (b *testBench) newLimitsReplica() *dispatcher.Dispatcher {
	return dispatcher.New(dispatcher.Config{
		Store: b.store, Semaphore: b.semaphore, Limits: policies.NewLimits(limits.New(b.redis)), FleetTokens: []string{fleetToken},
	})
}

// TestTwoReplicasNeverBothPass checks many devices of one account that report to two replicas at the same time,
// while the policy has room for one start: only one device starts.
func TestTwoReplicasNeverBothPass(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		other := b.newLimitsReplica()
		b.createLimitedPool(60)
		var names []string
		for i := range 12 {
			names = append(names, fmt.Sprintf("d%d", i))
			b.createAccountDevice(names[i], "x")
		}
		b.createBatch("a", nil, names...)
		var granted atomic.Int64
		var all sync.WaitGroup
		for i, name := range names {
			d := b.Dispatcher
			if i%2 == 0 {
				d = other
			}
			all.Go(func() {
				reply, err := d.HandleReport(b.ctx, devices.Caller{Device: devices.ID(name), Via: devices.ViaFleetToken}, devices.Report{ID: "1", Accept: true})
				if err == nil && reply.Reason == devices.ReasonGranted {
					granted.Add(1)
				}
			})
		}
		all.Wait()
		for _, name := range names { // if no device passed, their reservations blocked each other: try again one by one
			if granted.Load() == 0 && b.sendReport(name, `{"id":"2"}`).Reason == devices.ReasonGranted {
				granted.Add(1)
			}
		}
		if granted.Load() != 1 {
			b.t.Errorf("%d were granted", granted.Load())
		}
	}, withLongPeriod)
}

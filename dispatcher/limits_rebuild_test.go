package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

// slowStartsStore is a ledger in which a read of the starts of pool "a" waits until release is closed.
type slowStartsStore struct {
	dispatcher.Store

	release chan struct{}
}

func (s *slowStartsStore) Starts(ctx context.Context, pool string, before int64, limit int) ([]store.GrantStart, error) {
	if pool == "a" {
		select {
		case <-s.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.Store.Starts(ctx, pool, before, limit)
}

// TestARebuildHoldsUpNobodyElse checks a policy of pool "a" whose counts are rebuilt by a slow read of the starts.
// Only this pool is delayed: its devices are refused at once and asked to come again. Other pools with policies,
// and other tasks of the same devices, are served.
func TestARebuildHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	slow := &slowStartsStore{release: make(chan struct{})}
	var later atomic.Int64
	b := newLightBench(t, withLongPeriod, func(c *dispatcher.Config) {
		slow.Store, c.Store = c.Store, slow
		c.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	b.createLimitedPool(60)
	_, _, err := b.store.PutPool(b.ctx, "test", "b", store.PoolSpec{Capacity: 60, Lease: time.Minute, Limits: json.RawMessage(oneAnHourPerAccount)})
	b.must(err)
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("d%d", i))
		b.createAccountDevice(names[i], names[i])
	}
	b.createBatch("a", nil, names...)
	b.expectReason("d0", `{"id":"1"}`, devices.ReasonUnavailable) // this report waited for a while
	later.Store(int64(time.Minute))
	began := time.Now()
	for _, name := range names {
		b.expectReason(name, `{"id":"2"}`, devices.ReasonUnavailable)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("40 reports took %s: they waited one after another", took)
	}
	b.createBatch("b", nil, "d0", "d1")
	for _, name := range []string{"d0", "d1"} {
		if task := b.expectGrant(name); task.Pool != "b" {
			t.Errorf("%s was granted of pool %s", name, task.Pool)
		}
	}
	close(slow.release)
	b.awaitCondition("pool a to be known", func() bool { return b.sendReport("d2", `{"id":"3"}`).Reason == devices.ReasonGranted })
}

// TestOneReportRebuildsEveryOwner checks tasks whose pool, batches and profile all get policies at the same time, with on_error: open. The
// first report must rebuild the counts of all these owners, so no start passes unchecked.
func TestOneReportRebuildsEveryOwner(t *testing.T) {
	t.Parallel()
	open := json.RawMessage(strings.Replace(oneAnHourPerAccount, `"per":`, `"on_error":"open","per":`, 1))
	for _, batches := range []int{1, 4} {
		b := newLightBench(t, withLongPeriod)
		b.createPool("a", 9, time.Minute)
		b.createAccountDevice("d1", "x")
		b.createBatch("a", nil, "d1")
		b.runNextTask("d1")
		b.changePool("", func(p *store.PoolSpec) { p.Limits = open })
		b.putProfile("slow", string(open))
		_, err := b.store.CreateDevice(b.ctx, "test", "d2", store.DeviceSpec{Tags: map[string]string{"account": "x"}, Profile: "slow"}, []byte("d2"), nil)
		b.must(err)
		for range batches {
			b.createBatch("a", func(s *store.Batch) { s.Limits = open }, "d2")
		}
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
	}
}

// unsettledReservations is a limiter whose last answer of several is never a decision, however often the checks are repeated.
type unsettledReservations struct{ policies.Reservations }

func (u unsettledReservations) Reserve(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error) {
	answers, err := u.Reservations.Reserve(ctx, pool, checks)
	if err == nil && len(answers) > 1 {
		answers[len(answers)-1].Status = limits.StatusUnsettled
	}
	return answers, err
}

// TestNoStartPassesWithoutItsReservation checks two tasks of a device. The policies of the second task cannot be checked, so the reservations
// of both tasks are released. Then the first task must not start, although its policies allowed it.
func TestNoStartPassesWithoutItsReservation(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, withLongPeriod, func(c *dispatcher.Config) { c.Limits.Reservations = unsettledReservations{c.Limits.Reservations} })
	b.createLimitedPool(9)
	b.createAccountDevice("d1", "x")
	for range 2 {
		b.createBatch("a", nil, "d1")
	}
	b.expectReason("d1", `{"id":"1"}`, devices.ReasonUnavailable)
}

// TestARefusalHoldsIfAnotherTaskIsNotChecked checks two tasks of a device. The pool's policy refuses the first task, and would let it start if
// it could not be checked. The policies of the second task cannot be checked. Then the first task must not start.
func TestARefusalHoldsIfAnotherTaskIsNotChecked(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, withLongPeriod, func(c *dispatcher.Config) { c.Limits.Reservations = unsettledReservations{c.Limits.Reservations} })
	b.createLimitedPool(9)
	b.changePool("", func(p *store.PoolSpec) {
		p.Limits = json.RawMessage(strings.Replace(oneAnHourPerAccount, `"per":`, `"on_error":"open","per":`, 1))
	})
	b.createAccountDevice("d1", "x")
	b.createBatch("a", nil, "d1")
	b.runNextTask("d1")
	b.createBatch("a", nil, "d1")
	b.createBatch("a", func(s *store.Batch) { s.Limits = json.RawMessage(oneAnHourPerAccount) }, "d1")
	b.expectReason("d1", `{"id":"1"}`, devices.ReasonUnavailable)
}

// failingReservations is a limiter that fails every reservation.
type failingReservations struct{ policies.Reservations }

func (failingReservations) Reserve(context.Context, string, []limits.Check) ([]limits.Answer, error) {
	return nil, limits.ErrUnavailable
}

// TestWhatIsNotCheckedIsCounted checks starts whose policies cannot be checked: the metric counts each as
// unchecked, whether it passes or waits.
func TestWhatIsNotCheckedIsCounted(t *testing.T) {
	t.Parallel()
	for what, reason := range map[string]devices.Reason{"closed": devices.ReasonUnavailable, "open": devices.ReasonGranted} {
		registry := prometheus.NewRegistry()
		b := newLightBench(t, withLongPeriod, func(c *dispatcher.Config) {
			c.Limits.Reservations, c.Registerer = failingReservations{c.Limits.Reservations}, registry
		})
		b.createLimitedPool(9)
		b.changePool("", func(p *store.PoolSpec) {
			p.Limits = json.RawMessage(strings.Replace(oneAnHourPerAccount, `"per":`, `"on_error":"`+what+`","per":`, 1))
		})
		b.createAccountDevice("d1", "x")
		b.createBatch("a", nil, "d1")
		b.expectReason("d1", `{"id":"1"}`, reason)
		if n := limitCheckCount(t, registry, "unchecked"); n != 1 {
			t.Errorf("%s: %f were counted", what, n)
		}
	}
}

// limitCheckCount returns how many checks of policies had this outcome, summed over all policies.
func limitCheckCount(t *testing.T, registry *prometheus.Registry, outcome string) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	must.Succeed(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "dispatcher_limit_checks_total" && l.GetName() == "outcome" && l.GetValue() == outcome {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// TestALimitedDeviceComesWhenItMay checks when a device is asked to report again if a policy refuses it: not before
// the policy allows the start, and not much later.
func TestALimitedDeviceComesWhenItMay(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(9)
		b.createAccountDevice("d1", "x")
		b.createAccountDevice("d2", "x")
		b.createBatch("a", nil, "d1", "d2")
		b.expectGrant("d1")
		reply := b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		e := b.explainTask(b.deviceTaskIDs("d2")[0])
		opens := e.Causes[0].Until.Sub(e.At) // why ran some time after the reply
		if after := time.Duration(reply.ReportAfterMS) * time.Millisecond; after < opens || after > 72*time.Minute {
			b.t.Errorf("told to come after %s, it may in %s", after, opens)
		}
	}, func(c *dispatcher.Config) { c.ReportPeriod = 24 * time.Hour })
}

package store_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestDDIActionsAreNumberedPerDevice checks the numbers of the actions of devices that speak DDI. Each grant has one number, and a repeated
// or older grant gets no new number. After a restore, the numbers skip ahead, even for a device whose first actions are lost.
func TestDDIActionsAreNumberedPerDevice(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		_, err := l.EnsureDevices(l.Context(), "a", "b")
		l.must(err)
		_, tasks := l.queueBatch(store.Batch{Pool: "p", IsDeployment: true, Payload: []byte(`{"deployment":{}}`)}, "a", "b")
		expect := func(device string, task, token, id int64, state store.HawkbitState, overran bool) store.HawkbitAction {
			l.Helper()
			got, hasOverrun, err := l.UpdateHawkbitAction(l.Context(), device, task, token)
			l.must(err)
			if got.ID != id || got.State != state || hasOverrun != overran {
				l.Errorf("%s with grant %d: %+v, overrun %t; want number %d, %s, overrun %t", device, token, got, hasOverrun, id, state, overran)
			}
			return got
		}
		expect("a", 0, 0, 0, store.HawkbitClosed, false)
		first := l.mustGrant(tasks[0], "a", "p", 0)
		for range 2 {
			if got := expect("a", first.Task, first.Token, 1, store.HawkbitOpen, false); string(got.Payload) != `{"deployment":{}}` || !got.AsksAttributes {
				l.Errorf("action %+v", got)
			}
		}
		expect("a", 0, 0, 1, store.HawkbitOpen, false) // the grant is in force
		l.must(l.RecordHawkbitAttributes(l.Context(), "a"))
		_, err = l.ProtectAfterRestore(l.Context(), "op", 0)
		l.must(err)
		if got := expect("a", first.Task, first.Token, 1, store.HawkbitOpen, false); got.AsksAttributes {
			l.Error("the device is asked for its attributes again")
		}
		l.recordResult(first, store.BySuccess, "")
		if got := expect("a", 0, 0, 1, store.HawkbitInstalled, false); !got.AsksAttributes {
			l.Error("after the update, the device is not asked for its attributes")
		}
		expect("a", 99, first.Token+50, 1_000_002, store.HawkbitOpen, false)
		expect("a", first.Task, first.Token, 1_000_002, store.HawkbitOverrun, true) // an older grant gets no number; the newest has no grant
		expect("a", 0, 0, 1_000_002, store.HawkbitOverrun, false)
		expect("b", 98, first.Token+60, 1_000_001, store.HawkbitOpen, false)
		l.must(l.EndHawkbitAction(l.Context(), "b", 1_000_000, store.HawkbitClosed))
		expect("b", 98, first.Token+60, 1_000_001, store.HawkbitOpen, false)
		l.must(l.EndHawkbitAction(l.Context(), "b", 1_000_001, store.HawkbitClosed))
		expect("b", 0, 0, 1_000_001, store.HawkbitClosed, false)
	})
}

// TestARefusedCancelIsNotAskedAgain checks a device that refuses to stop its task. Neither the pass that ends the waiting tasks of cancelled
// batches nor the cancel of another batch of the pool asks the device again.
func TestARefusedCancelIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		batch, tasks := l.queueBatch(store.Batch{Pool: "p"}, "a", "b")
		other, _ := l.queueBatch(store.Batch{Pool: "p"}, "c")
		grant := l.mustGrant(tasks[0], "a", "p", 0)
		_, err := l.CancelBatch(l.Context(), "op", batch.ID)
		l.must(err)
		l.must(l.WithdrawHawkbitCancel(l.Context(), grant.Task, grant.Token))
		_, err = l.EndCancelled(l.Context(), 10)
		l.must(err)
		_, err = l.CancelBatch(l.Context(), "op", other.ID)
		l.must(err)
		if _, got, _, err := l.Task(l.Context(), grant.Task); err != nil || got.CancelWhy != "" {
			l.Errorf("the device is asked again: %+v, %v", got, err)
		}
	})
}

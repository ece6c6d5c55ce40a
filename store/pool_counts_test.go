package store_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// ageEvents moves the times of all events into the past by the duration by.
func (l *ledger) ageEvents(by time.Duration) {
	l.Helper()
	l.exec(`UPDATE events SET at = at - $1 * {ms}`, by.Milliseconds())
}

// errOf drops the result of a call and returns its error.
func errOf[T any](_ T, err error) error { return err }

// TestEveryEndOfAGrantIsCounted checks that the number of held slots at each time can be computed from the counts of a pool, in whichever
// way the grants ended.
func TestEveryEndOfAGrantIsCounted(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		const step = 10 * time.Hour // longer than the test runs
		l.putPool("p", 9)
		l.putPool("q", 9)
		names := deviceNames(9)
		batch, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 2}, names...)
		_, once := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, "once")
		_, other := l.queueBatch(store.Batch{Pool: "q"}, "other")
		grants := map[int]store.Grant{}
		grantTasks := func(i ...int) func() {
			return func() {
				for _, n := range i {
					grants[n] = l.mustGrant(ids[n], names[n], "p", n)
				}
			}
		}
		var held []int
		for _, act := range []func(){
			grantTasks(0, 1, 2, 3, 4, 5, 6),
			func() { grants[7] = l.mustGrant(once[0], "once", "p", 7) },
			func() { l.recordResult(grants[0], store.BySuccess, "") },
			func() { l.recordResult(grants[1], store.ByFailure, "") }, // The task is tried again.
			grantTasks(1),
			func() { l.recordResult(grants[2], store.ByReject, "") },
			func() { l.must(errOf(l.forceRelease(3, store.ForcedRelease{AtOnce: true}))) },
			func() { l.must(errOf(l.CancelBatch(l.Context(), "op", batch.ID))) }, // asks the devices to stop; their grants do not end
			func() { l.recordResult(grants[4], store.BySuccess, "") },
			func() { l.reapAll() },
			func() { l.recordResult(grants[7], store.BySuccess, ""); l.mustGrant(other[0], "other", "q", 0) }, // The first result is late.
			func() {},
		} {
			act()
			held = append(held, l.countRows("grants WHERE pool = 'p'"))
			l.ageEvents(step)
		}
		m, err := l.Minutes(l.Context(), "p", 1000*time.Hour)
		l.must(err)
		var counted []int
		for i := range held {
			n, _ := heldAt(m, int64(len(held)-i)*int64(step/time.Minute)-1)
			counted = append(counted, n)
		}
		if diff := cmp.Diff(held, counted); diff != "" || held[0] != 7 || held[len(held)-1] == 7 {
			l.Errorf("%v were held; counted: %s", held, diff)
		}
		lapsed := 0
		for _, one := range m.Minutes {
			lapsed += one.Lapsed
		}
		l.expectChangesAddUp([]store.SlotChanges{{Pool: "p", Granted: 9, Lapsed: lapsed}, {Pool: "q", Granted: 1}})
		if lapsed == 0 {
			l.Error("no lease lapsed")
		}
	})
}

// expectChangesAddUp splits the log into two parts. The sums of SlotChangesBetween over both parts must equal want.
func (l *ledger) expectChangesAddUp(want []store.SlotChanges) {
	l.Helper()
	sums := map[string]store.SlotChanges{}
	mark, err := l.ReadEventPosition(l.Context(), -1)
	l.must(err)
	for _, part := range [][2]int64{{0, mark.Last / 2}, {mark.Last / 2, mark.Last}, {mark.Last, mark.Last}} {
		changes, err := l.SlotChangesBetween(l.Context(), part[0], part[1])
		l.must(err)
		for _, c := range changes {
			sum := sums[c.Pool]
			sums[c.Pool] = store.SlotChanges{Pool: c.Pool, Granted: sum.Granted + c.Granted, Lapsed: sum.Lapsed + c.Lapsed}
		}
	}
	if diff := cmp.Diff(want, slices.SortedFunc(maps.Values(sums), func(a, b store.SlotChanges) int { return strings.Compare(a.Pool, b.Pool) })); diff != "" {
		l.Errorf("counted in two parts: %s", diff)
	}
}

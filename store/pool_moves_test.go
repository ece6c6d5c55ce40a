package store_test

import (
	"slices"
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

// heldBefore returns how many slots of the pool were held before the newest `steps` steps of time. It starts with the number of slots that
// are held now. For each of these steps it subtracts the grants that began and adds the grants that ended.
func heldBefore(m store.SlotActivity, pool string, steps int) int {
	held := m.Held[pool]
	for _, s := range m.Steps {
		if s.Pool == pool && s.Step < steps {
			held += s.Ended - s.Granted
		}
	}
	return held
}

// errOf drops the result of a call and returns its error.
func errOf[T any](_ T, err error) error { return err }

// TestMovesTellWhatWasHeld checks that the number of held slots at each time can be computed from the events of a pool, in whichever way
// the grants ended.
func TestMovesTellWhatWasHeld(t *testing.T) {
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
		m, err := l.SlotActivity(l.Context(), 1000*time.Hour, step, 1000)
		l.must(err)
		var fromLog []int
		for i := range held {
			fromLog = append(fromLog, heldBefore(m, "p", len(held)-i))
		}
		if diff := cmp.Diff(held, fromLog); diff != "" || held[0] != 7 || held[len(held)-1] == 7 {
			l.Errorf("%v were held; of the log: %s", held, diff)
		}
		if m.Held["q"] != 1 || heldBefore(m, "q", 2) != 1 || heldBefore(m, "q", 3) != 0 || m.Back != 1000*time.Hour {
			l.Errorf("of the other pool: %+v", m)
		}
		l.expectMovesAddUp(m)
		lapsed := slices.DeleteFunc(m.Steps, func(s store.SlotChanges) bool { return s.Lapsed == 0 })
		if len(lapsed) == 0 || lapsed[0].Step != 3 || lapsed[0].Lapsed != lapsed[0].Ended {
			l.Errorf("lapsed: %+v", lapsed)
		}
	})
}

// expectMovesAddUp splits the log into two parts. The sums of SlotChangesBetween over both parts must equal the sums in the parameter all.
func (l *ledger) expectMovesAddUp(all store.SlotActivity) {
	l.Helper()
	sums := map[string]store.SlotChanges{}
	add := func(moves []store.SlotChanges) {
		for _, m := range moves {
			sum := sums[m.Pool]
			sums[m.Pool] = store.SlotChanges{Granted: sum.Granted + m.Granted, Ended: sum.Ended + m.Ended, Lapsed: sum.Lapsed + m.Lapsed}
		}
	}
	add(all.Steps)
	want := sums
	sums = map[string]store.SlotChanges{}
	mark, err := l.ReadEventPosition(l.Context(), -1)
	l.must(err)
	for _, part := range [][2]int64{{0, mark.Last / 2}, {mark.Last / 2, mark.Last}, {mark.Last, mark.Last}} {
		moves, err := l.SlotChangesBetween(l.Context(), part[0], part[1])
		l.must(err)
		add(moves)
	}
	if diff := cmp.Diff(want, sums); diff != "" {
		l.Errorf("counted in two parts: %s", diff)
	}
}

func TestMovesAreBounded(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const step = 10 * time.Hour
	if m, err := l.SlotActivity(l.Context(), time.Hour, time.Second, 10); err != nil || len(m.Steps) != 0 || m.Back != time.Hour {
		l.Fatalf("of an empty log: %+v, %v", m, err)
	}
	l.putPool("p", 4)
	l.ageEvents(20 * step)
	l.putPool("p", 5)
	names := deviceNames(3)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, names...)
	for i := range ids {
		l.mustGrant(ids[i], names[i], "p", i)
		l.ageEvents(step)
	}
	l.putPool("p", 6)
	m, err := l.SlotActivity(l.Context(), 10*step, step, 1000)
	l.must(err)
	if len(m.Steps) != 3 || m.Back != 10*step {
		l.Errorf("all: %+v", m)
	}
	for i := range m.Resizes {
		m.Resizes[i].Ago = m.Resizes[i].Ago.Round(step)
	}
	want := []store.Resize{{Pool: "p", CapacityBefore: 5}, {Pool: "p", Ago: 3 * step, CapacityBefore: 4}}
	if diff := cmp.Diff(want, m.Resizes); diff != "" {
		l.Error(diff)
	}
	if m, err = l.SlotActivity(l.Context(), step+step/2, step, 1000); err != nil || len(m.Steps) != 1 || len(m.Resizes) != 1 {
		l.Errorf("the last step: %+v, %v", m, err)
	}
	if m, err = l.SlotActivity(l.Context(), 10*step, step, 2); err != nil || len(m.Steps) != 1 || m.Back.Round(step) != step {
		l.Errorf("the last two events: %+v, %v", m, err)
	}
}

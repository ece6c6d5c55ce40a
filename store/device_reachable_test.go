package store_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// registerReachable registers devices with this reach (the way in which they can be notified). They count as seen now.
func (l *ledger) registerReachable(reach store.Reach, devices ...string) {
	l.Helper()
	now, err := l.Clock(l.Context())
	l.must(err)
	seen := map[string]store.LastReport{}
	for _, id := range devices {
		_, err := l.EnsureDevices(l.Context(), id)
		l.must(err)
		seen[id] = store.LastReport{At: now, Reach: reach}
	}
	l.must(l.TouchDevices(l.Context(), seen))
}

// findReachable returns the devices and tasks that a search for reachable devices finds, and the position of the last task. If
// search.SeenWithin is 0, 1 h is used.
func (l *ledger) findReachable(search store.ReachableSearch) (found []string, last store.TaskPosition) {
	l.Helper()
	if search.SeenWithin == 0 {
		search.SeenWithin = time.Hour
	}
	part, err := l.ReachableDevices(l.Context(), search)
	l.must(err)
	for _, s := range part.Devices {
		found = append(found, fmt.Sprintf("%s reach=%d priority=%d weight=%d", s.Device, s.Reach, s.Priority, s.Weight))
	}
	return found, part.Last
}

func TestReachableDevices(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 60)
		l.registerReachable(store.ReachPush, "pushed", "blocked", "busy", "backoff", "long-ago", "sleeps", "twice")
		l.registerReachable(store.ReachPark, "parked")
		l.registerReachable(store.ReachNone, "polls")
		l.must(l.SetBlocked(l.Context(), "op", "blocked", true, ""))
		l.exec(`UPDATE devices SET last_seen = last_seen - 3600000 * {ms} WHERE id IN ('long-ago', 'sleeps')`)
		l.exec(`UPDATE devices SET quiet_until = last_seen WHERE id = 'long-ago'`)
		_, other := l.queueBatch(store.Batch{Pool: "p", Weight: 1}, "busy")
		l.mustGrant(other[0], "busy", "p", 0)

		b, ids := l.queueBatch(store.Batch{Pool: "p", Weight: 7, Priority: 3}, "unknown", "polls", "blocked", "busy", "backoff", "long-ago", "sleeps", "twice", "parked", "pushed")
		l.exec(`UPDATE tasks SET retry_at = {now} + 3600000 * {ms} WHERE id = $1`, ids[4])
		found, last := l.findReachable(store.ReachableSearch{Pool: "p", Batch: b.ID, SeenWithin: time.Minute, Limit: 100})
		want := []string{"sleeps reach=1 priority=3 weight=7", "twice reach=1 priority=3 weight=7", "parked reach=2 priority=3 weight=7", "pushed reach=1 priority=3 weight=7"}
		if !reflect.DeepEqual(found, want) || last.Task != ids[9] {
			l.Errorf("reachable devices %q up to %+v, want %q", found, last, want)
		}
		for _, c := range []struct{ what, set, undo string }{
			{"a paused batch", `UPDATE batches SET paused = true`, `UPDATE batches SET paused = false`},
			{"a batch not begun", `UPDATE batches SET not_before = {now} + 3600000 * {ms}`, `UPDATE batches SET not_before = NULL`},
			{"a paused pool", `UPDATE pools SET paused = true`, `UPDATE pools SET paused = false`},
			{"a closed window", `UPDATE batches SET opens_at = {now} + 3600000 * {ms}, closes_at = {now} + 7200000 * {ms}`, `UPDATE batches SET opens_at = NULL, closes_at = NULL`},
		} {
			l.exec(c.set)
			l.expectNoneReachable(c.what, b.ID)
			l.exec(c.undo)
		}
		if found, _ := l.findReachable(store.ReachableSearch{Pool: "p", Batch: b.ID, Limit: 100}); len(found) != len(want) {
			l.Errorf("in the end %q", found)
		}
	})
}

func (l *ledger) expectNoneReachable(what string, batch int64) {
	l.Helper()
	if found, _ := l.findReachable(store.ReachableSearch{Pool: "p", Batch: batch, Limit: 100}); len(found) > 0 {
		l.Errorf("%s: reachable devices %q", what, found)
	}
	open, err := l.OpenBatches(l.Context(), "p", 0, 10)
	l.must(err)
	if slices.Contains(open, store.OpenBatch{ID: batch, MayStart: true}) {
		l.Errorf("%s: the batch runs", what)
	}
}

// TestReachableDevicesGoOnFromTheirMark searches the reachable devices of a batch in parts. Each part begins at the position where the
// previous part ended, so each task must be read exactly once.
func TestReachableDevicesGoOnFromTheirMark(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 60)
		var list []store.NewTask
		var want []string
		for i := range 12 {
			device, priority := fmt.Sprintf("d%02d", i), []int{5, -2, 0, 9}[i%4]
			l.registerReachable(store.ReachPush, device)
			list = append(list, store.NewTask{Device: device, Priority: &priority})
			want = append(want, fmt.Sprintf("%+04d %s", 100-priority, device))
		}
		slices.Sort(want)
		b, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p", Weight: 1}, func(yield func(store.NewTask, error) bool) {
			for _, task := range list {
				if !yield(task, nil) {
					return
				}
			}
		})
		l.must(err)
		var got []string
		search := store.ReachableSearch{Pool: "p", Batch: b.ID, SeenWithin: time.Hour, Limit: 5}
		for parts := 0; ; parts++ {
			part, err := l.ReachableDevices(l.Context(), search)
			l.must(err)
			if part.TasksRead > 5 || parts > 2 {
				l.Fatalf("part %d looked at %d tasks", parts, part.TasksRead)
			}
			for _, s := range part.Devices {
				got = append(got, fmt.Sprintf("%+04d %s", 100-s.Priority, s.Device))
			}
			if part.TasksRead < 5 {
				break
			}
			search.After = part.Last
		}
		if !slices.Equal(got, want) {
			l.Errorf("order %q\nwant  %q", got, want)
		}
	})
}

func TestPoolsWithWork(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		all := []string{"gone", "idle", "work", "paused", "none", "unknown"}
		for _, name := range all[1:4] {
			l.putPool(name, 1)
		}
		l.putPool("none", 0)
		l.queueBatch(store.Batch{Pool: "work", Weight: 1}, "a")
		l.queueBatch(store.Batch{Pool: "none", Weight: 1}, "a")
		l.queueBatch(store.Batch{Pool: "paused", Weight: 1}, "a")
		l.exec(`UPDATE pools SET paused = true WHERE name = 'paused'`)
		expect := func(want ...string) {
			l.Helper()
			got, err := l.PoolsWithWork(l.Context(), all)
			l.must(err)
			if !slices.Equal(got, want) {
				l.Errorf("pools %q, want %q", got, want)
			}
		}
		expect() // No device is reachable.
		l.registerReachable(store.ReachPush, "b")
		expect("work")
		_, err := l.ProtectAfterRestore(l.Context(), "op", 0)
		l.must(err)
		expect()
	})
}

func TestOpenBatchesComeInParts(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 60)
	l.putPool("q", 60)
	var want []int64
	for i := range 7 {
		b, ids := l.queueBatch(store.Batch{Pool: []string{"p", "q"}[i%3%2], Weight: 1}, "a", "b")
		switch {
		case b.Pool == "q":
		case i == 3: // No task waits.
			l.exec(`UPDATE tasks SET state = 'cancelled' WHERE id IN ($1, $2)`, ids[0], ids[1])
		default:
			want = append(want, b.ID)
		}
	}
	var got []int64
	for after := int64(0); ; {
		part, err := l.OpenBatches(l.Context(), "p", after, 2)
		l.must(err)
		if len(part) == 0 {
			break
		}
		for _, b := range part {
			got = append(got, b.ID)
			after = b.ID
		}
	}
	if !slices.Equal(got, want) {
		l.Errorf("batches %v, want %v", got, want)
	}
}

// TestReachIsThatOfTheLastReport checks the stored reach of a device (the way to notify the device). A newer report must change it, an
// older report must not.
func TestReachIsThatOfTheLastReport(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 60)
	b, _ := l.queueBatch(store.Batch{Pool: "p", Weight: 1}, "a")
	l.registerReachable(store.ReachPark, "a")
	expect := func(want ...string) {
		l.Helper()
		if found, _ := l.findReachable(store.ReachableSearch{Pool: "p", Batch: b.ID, Limit: 9}); !slices.Equal(found, want) {
			l.Errorf("reachable devices %q, want %q", found, want)
		}
	}
	expect("a reach=2 priority=0 weight=1")
	now, err := l.Clock(l.Context())
	l.must(err)
	l.must(l.TouchDevices(l.Context(), map[string]store.LastReport{"a": {At: now.Add(-time.Minute), Reach: store.ReachPush}}))
	expect("a reach=2 priority=0 weight=1")
	l.must(l.TouchDevices(l.Context(), map[string]store.LastReport{"a": {At: now.Add(time.Second)}}))
	expect()
}

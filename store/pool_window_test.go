package store_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// windowAroundNow returns a daily window of this length. The parameter before is the time that has passed since the window opened.
func (l *ledger) windowAroundNow(before, length time.Duration) store.Window {
	l.Helper()
	now, err := l.Clock(l.Context())
	l.must(err)
	return dailyWindow(now.Add(-before), length)
}

// dailyWindow returns a window of this length that opens every day, at the time of day that the parameter from has in UTC.
func dailyWindow(from time.Time, length time.Duration) store.Window {
	from = from.UTC()
	return store.Window{Cron: fmt.Sprintf("%d %d * * *", from.Minute(), from.Hour()), Duration: length.String(), Timezone: "UTC"}
}

// shiftWindows moves the stored opening times of all rows with windows by a duration. table is batches or pools.
func (l *ledger) shiftWindows(table string, by time.Duration) {
	l.Helper()
	l.exec(`UPDATE `+table+` SET opens_at = opens_at + $1 * {ms}, closes_at = closes_at + $1 * {ms}, windows_due = windows_due + $1 * {ms} WHERE windows IS NOT NULL`, by.Milliseconds())
}

func (l *ledger) refreshWindows() int {
	l.Helper()
	n, err := l.RefreshWindows(l.Context(), 100)
	l.must(err)
	return n
}

func TestNothingStartsOutsideOfTheWindows(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		inside, outside := l.windowAroundNow(30*time.Minute, 3*time.Hour), l.windowAroundNow(3*time.Hour, time.Hour)
		l.putPool("p", 20) // The leases last an hour.
		_, _, err := l.PutPool(l.Context(), "op", "shut", store.PoolSpec{Capacity: 20, Lease: time.Hour, Windows: []store.Window{outside}})
		l.must(err)
		_, _, err = l.PutPool(l.Context(), "op", "open", store.PoolSpec{Capacity: 20, Lease: time.Hour, Windows: []store.Window{outside, inside}})
		l.must(err)
		short := l.windowAroundNow(30*time.Minute, 90*time.Minute) // Less than an hour is left.
		var claims []store.Claim
		var want []store.ClaimStatus
		for i, test := range []struct {
			batch store.Batch
			want  store.ClaimStatus
		}{
			{store.Batch{Pool: "p", Windows: []store.Window{inside}}, claimGranted},
			{store.Batch{Pool: "p", Windows: []store.Window{outside}}, claimLost},
			{store.Batch{Pool: "p", Windows: []store.Window{outside, inside}, FinishInside: true}, claimGranted},
			{store.Batch{Pool: "p", Windows: []store.Window{short}}, claimGranted},
			{store.Batch{Pool: "p", Windows: []store.Window{short}, FinishInside: true}, claimLost},
			{store.Batch{Pool: "p", Windows: []store.Window{short}, FinishInside: true, Lease: 20 * time.Minute}, claimGranted},
			{store.Batch{Pool: "shut"}, claimLost},
			{store.Batch{Pool: "open", FinishInside: true}, claimGranted},
			{store.Batch{Pool: "open", FinishInside: true, Lease: 170 * time.Minute}, claimLost},
			{store.Batch{Pool: "shut", Windows: []store.Window{inside}}, claimLost},
		} {
			device := fmt.Sprint("d", i)
			b, ids := l.queueBatch(test.batch, device)
			if !slices.Equal(b.Windows, test.batch.Windows) || b.FinishInside != test.batch.FinishInside || b.Opening.Until.IsZero() == (len(b.Windows) > 0) {
				l.Errorf("batch %d became %+v", i, b)
			}
			claims, want = append(claims, l.newClaim(ids[0], device, test.batch.Pool, i)), append(want, test.want)
		}
		for _, b := range []store.Batch{
			{Pool: "shut", FinishInside: true}, {Pool: "p", Windows: []store.Window{outside}, FinishInside: true}, {Pool: "open", FinishInside: true, Lease: 3 * time.Hour},
		} {
			if _, err := l.CreateBatch(l.Context(), "op", b, tasksFor([]string{"x"})); !errors.Is(err, store.ErrNeverStarts) {
				l.Errorf("%+v: %v", b, err)
			}
		}
		waiting := 0
		for _, pool := range []string{"p", "open", "shut"} {
			waiting += l.countWaitingUpTo(100, pool)
		}
		if waiting != 5 {
			l.Errorf("%d devices wait that could start, want 5", waiting)
		}
		l.wantStatuses(l.claimAll(claims...), want...)
	})
}

// TestWhatCouldStartIsTakenAtAnyHour checks that a batch can be created at any time of day, even if little time is left of the current
// window. Adjacent windows must count as one window.
func TestWhatCouldStartIsTakenAtAnyHour(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		now, err := l.Clock(l.Context())
		l.must(err)
		l.putPool("p", 5)
		const needed = 2 * time.Hour
		for _, begun := range []int{0, 1, 2, 14} { // hours since the first window began
			from := now.Add(time.Duration(-begun) * time.Hour)
			touching := []store.Window{dailyWindow(from, time.Hour), dailyWindow(from.Add(time.Hour), 90*time.Minute)}
			pool := fmt.Sprint("begun-", begun)
			_, _, err := l.PutPool(l.Context(), "op", pool, store.PoolSpec{Capacity: 5, Lease: needed, Windows: touching})
			l.must(err)
			after := []store.Window{dailyWindow(from.Add(150*time.Minute), 21*time.Hour)}
			for _, test := range []struct {
				batch store.Batch
				want  error
			}{
				{store.Batch{Pool: "p", Windows: touching, Lease: needed, FinishInside: true}, nil},
				{store.Batch{Pool: "p", Windows: touching, Lease: needed + 30*time.Minute, FinishInside: true}, store.ErrNeverStarts},
				{store.Batch{Pool: pool, FinishInside: true}, nil},
				{store.Batch{Pool: pool, Windows: touching[1:], FinishInside: true}, store.ErrNeverStarts},
				{store.Batch{Pool: pool, Windows: after, Lease: time.Minute, FinishInside: true}, store.ErrNeverStarts},
				{store.Batch{Pool: pool, Windows: after}, nil},
			} {
				if _, err := l.CreateBatch(l.Context(), "op", test.batch, tasksFor([]string{"x"})); !errors.Is(err, test.want) {
					l.Errorf("begun %d hours ago, %+v: %v, want %v", begun, test.batch, err, test.want)
				}
			}
		}
	})
}

func TestClosedWindowsAreFollowedByTheNext(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		inside := l.windowAroundNow(30*time.Minute, 3*time.Hour)
		_, _, err := l.PutPool(l.Context(), "op", "p", store.PoolSpec{Capacity: 5, Lease: time.Minute, Windows: []store.Window{inside}})
		l.must(err)
		b, ids := l.queueBatch(store.Batch{Pool: "p", Windows: []store.Window{inside}}, "a", "b")
		pool, err := l.Pool(l.Context(), "p")
		l.must(err)
		if pool.Opening != b.Opening || b.Opening.Until.Sub(b.Opening.From) != 3*time.Hour {
			l.Fatalf("pool %+v, batch %+v", pool.Opening, b.Opening)
		}
		if n := l.refreshWindows(); n != 0 {
			l.Fatalf("%d windows are due while they are open", n)
		}
		for _, table := range []string{"batches", "pools"} { // The window of the day is over.
			l.shiftWindows(table, -4*time.Hour)
			l.wantStatuses(l.claimAll(l.newClaim(ids[0], "a", "p", 0)), claimLost)
			views, err := l.DeviceViews(l.Context(), []string{"a"})
			l.must(err)
			c := views[0].Candidates[0]
			over := c.Window
			if table == "pools" {
				over = c.PoolWindow
			}
			if !over.Until.Before(views[0].Now) || c.FinishInside {
				l.Fatalf("the candidate shows %+v at %s", c, views[0].Now)
			}
			if n := l.refreshWindows(); n != 1 {
				l.Fatalf("%d of %s refreshed, want 1", n, table)
			}
			g := l.mustGrant(ids[0], "a", "p", 0)
			l.recordResult(g, store.ByReturn, "")
		}
		after, err := l.Pool(l.Context(), "p")
		l.must(err)
		if after.Version != pool.Version || !after.UpdatedAt.Equal(pool.UpdatedAt) || after.Opening != pool.Opening {
			l.Errorf("refreshed to %+v, want it as it was: %+v", after, pool)
		}
		// The windows of the batch are changed, and then removed.
		outside := []store.Window{l.windowAroundNow(3*time.Hour, time.Hour)}
		_, err = l.ChangeBatch(l.Context(), "ann", b.ID, func(b *store.Batch) error { b.Windows = outside; return nil })
		l.must(err)
		l.wantStatuses(l.claimAll(l.newClaim(ids[1], "b", "p", 1)), claimLost)
		open, err := l.ChangeBatch(l.Context(), "ann", b.ID, func(b *store.Batch) error { b.Windows = nil; return nil })
		l.must(err)
		if open.Opening != (store.Opening{}) || open.Windows != nil {
			l.Errorf("without windows: %+v", open)
		}
		p, err := l.ChangePool(l.Context(), "ann", "p", "", func(spec *store.PoolSpec) error { spec.Windows = nil; return nil })
		l.must(err)
		if p.Windows != nil || p.Opening != (store.Opening{}) || p.Version != pool.Version+1 {
			l.Errorf("without windows: %+v", p)
		}
		l.mustGrant(ids[1], "b", "p", 1)
		if n := l.countRows("batches WHERE windows_due IS NOT NULL") + l.countRows("pools WHERE windows_due IS NOT NULL"); n != 0 {
			l.Errorf("%d are still to be refreshed", n)
		}
	})
}

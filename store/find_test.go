package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

func TestBatchesAreFoundByPartsOfTheirNames(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		for _, name := range []string{"Firmware 7.2", "speed tests", "firmware 7.3", "100% done", "a_b"} {
			l.queueBatch(store.Batch{Pool: "p", Name: name}, "x")
		}
		for part, want := range map[string]string{"firmware": "3 1", "FIRM": "3 1", "%": "4", "_": "5", "e": "4 3 2 1", "x": ""} {
			found, bound, err := l.BatchesNamed(l.Context(), part, store.BatchFilter{}, 0, 10)
			l.must(err)
			if got := batchIDs(found); got != want || bound.More {
				l.Errorf("%q: %s, want %s; %+v", part, got, want, bound)
			}
		}
		found, _, err := l.BatchesNamed(l.Context(), "e", store.BatchFilter{}, 4, 2)
		l.must(err)
		if got := batchIDs(found); got != "3 2" || found[0].Counts[store.Pending] != 1 {
			l.Errorf("two below 4: %s, %+v", got, found)
		}
		if found, _, err = l.BatchesNamed(l.Context(), "e", store.BatchFilter{Lane: store.LaneUrgent}, 0, 10); err != nil || len(found) > 0 {
			l.Errorf("urgent ones: %s, %v", batchIDs(found), err)
		}
	})
}

func batchIDs(list []store.Batch) string {
	var ids []string
	for _, b := range list {
		ids = append(ids, fmt.Sprint(b.ID))
	}
	return strings.Join(ids, " ")
}

func TestDevicesAreFoundByPartsOfTheirIDs(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for _, id := range []string{"ar-1", "AR-2", "m_1", "m-1", "router-ar-3"} {
			_, err := l.EnsureDevices(l.Context(), id)
			l.must(err)
		}
		for _, c := range []struct {
			part   string
			limit  int
			looked int
			want   string
		}{
			{"ar-", 10, 10, "AR-2 ar-1 router-ar-3, beyond "},
			{"M_", 10, 10, "m_1, beyond "},
			{"ar-", 1, 10, "AR-2, beyond "},
			{"router", 10, 3, ", beyond m-1"},
			{"x", 10, 10, ", beyond "},
		} {
			found, err := l.DevicesWithIDPart(l.Context(), store.DeviceFilter{Limit: c.limit}, c.part, c.looked)
			l.must(err)
			var ids []string
			for _, d := range found.Devices {
				ids = append(ids, d.ID)
			}
			if got := strings.Join(ids, " ") + ", beyond " + found.ContinueAfter; got != c.want {
				l.Errorf("%+v: %s", c, got)
			}
		}
	})
}

func TestFailedTasksAreFoundByTheirErrors(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		for range 2 {
			_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "c")
			for i, device := range []string{"a", "b"} {
				g := l.mustGrant(ids[i], device, "p", i)
				r := store.Result{Device: device, Task: g.Task, Token: g.Token, Cause: store.ByReject, Error: []string{"no route to host", "checksum 50%"}[i]}
				l.must(l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0].Err)
			}
		}
		for _, c := range []struct {
			start string
			limit int
			want  string
		}{{"no route", 10, "4 1"}, {"no route", 1, "4"}, {"route", 10, ""}, {"checksum 50%", 10, "5 2"}, {"checksum 5_", 10, ""}} {
			found, err := l.TasksByErrorPrefix(l.Context(), c.start, c.limit)
			l.must(err)
			var ids []string
			for _, task := range found {
				ids = append(ids, fmt.Sprint(task.ID))
			}
			if got := strings.Join(ids, " "); got != c.want {
				l.Errorf("%+v: %s", c, got)
			}
			_, _, err = l.Fold(l.Context(), 100) // The results must be the same from folded counts.
			l.must(err)
		}
	})
}

// TestSearchesAreBounded checks that a search reads a bounded number of rows, whether or not Postgres has
// statistics.
func TestSearchesAreBounded(t *testing.T) {
	t.Parallel()
	l := openWithManyTasks(t)
	l.exec(`INSERT INTO devices (id, created_at) SELECT 'm-' || i, now() FROM generate_series(1, 80000) i`)
	l.exec(`INSERT INTO batches (pool, kind, name, created_at) SELECT 'p1', 'k', 'b' || i, now() FROM generate_series(1, 80000) i`)
	l.exec(`INSERT INTO batch_counts (batch, state, n) SELECT id, 'failed', 1 FROM batches WHERE NOT EXISTS (SELECT 1 FROM batch_counts c WHERE c.batch = batches.id AND c.state = 'failed')`)
	for _, statistics := range []string{`SELECT 1`, `ANALYZE`} {
		l.exec(statistics)
		for name, plan := range map[string][]string{
			"batches":  l.explainAnalyze(store.BatchesNamedText(), int64(1)<<60, store.MaxExaminedRows, "%nothing%", 11, ""),
			"places":   l.explainAnalyze(store.FailedPlacesText(), 5000, 20),
			"failed":   l.explainAnalyze(store.FailedWithText(), 1, "failed", "nothing", 2500, 11),
			"finished": l.explainAnalyze(store.FailedWithText(), 1, "succeeded", "nothing", 2500, 11),
		} {
			bound := map[string]int{"batches": store.MaxExaminedRows, "places": 5001}[name]
			if bound == 0 {
				bound = 2500
			}
			if n := maxRowsRead(plan); n > bound {
				t.Errorf("%s, after %s: %d rows are looked at, %d at most:\n%s", name, statistics, n, bound, strings.Join(plan, "\n"))
			}
		}
	}
	found, err := l.DevicesWithIDPart(l.Context(), store.DeviceFilter{Prefix: "m-", Limit: 11}, "nothing", store.MaxExaminedRows)
	l.must(err)
	if found.Devices != nil || found.ContinueAfter == "" {
		t.Errorf("%d devices, beyond %q: all were looked at", len(found.Devices), found.ContinueAfter)
	}
}

package store_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestReadingsGoByTheirIndexes checks that queries read only the rows that they need, even if other devices or pools have many tasks, or if
// there were many starts in the past. SQLite plans from its schema alone, so an empty ledger is sufficient.
func TestReadingsGoByTheirIndexes(t *testing.T) {
	t.Parallel()
	l := openSQLite(t)
	for name, c := range map[string]struct {
		text  string
		args  []any
		index string // index and condition that the plan must use
		times int    // number of plan steps that use it
	}{
		"the tasks of a device":        {store.ViewsText(), []any{`[{"n":0,"name":"a"}]`}, "tasks_of_device (device=? AND state=?", 6},
		"devices of what waits":        {store.WaitingViewText(), []any{`[{"n":0,"name":"a"}]`, `[1]`}, "tasks_of_device (device=? AND state=?", 6},
		"reachable of a batch":         {store.ReachableText(), []any{"p", 1, 0, 0, 10, 1000}, "tasks_in_line (pool=? AND batch", 2},
		"open batches of a pool":       {store.OpenBatchesText(), []any{"p", 0, 10}, "tasks_in_line (pool=? AND batch", 2},
		"urgent batches of a pool":     {store.UrgentBatchesText(), []any{"p", 10}, "batches_urgent_of_pool (pool=? AND id>?)", 1},
		"pools with urgent work":       {store.PoolsWithUrgentText(), []any{`[{"n":0,"name":"p"}]`}, "batches_urgent_of_pool (pool=? AND id>?)", 1},
		"urgent batches":               {store.BatchesText(store.BatchFilter{Lane: store.LaneUrgent}), []any{9, 10}, "batches_urgent (id<?)", 1},
		"batches of a pool":            {store.BatchesText(store.BatchFilter{Pool: "p"}), []any{9, "p", 10}, "batches_of_pool (pool=? AND id<?)", 1},
		"batches of a kind":            {store.BatchesText(store.BatchFilter{Kind: "k"}), []any{9, "k", 10}, "batches_of_kind (kind=? AND id<?)", 1},
		"open batches":                 {store.BatchesText(store.BatchFilter{State: "running"}), []any{9, 10}, "batches_open (id<?)", 1},
		"paused batches of a pool":     {store.BatchesText(store.BatchFilter{Pool: "p", State: "paused"}), []any{9, "p", 10}, "batches_open_of_pool (pool=? AND id<?)", 1},
		"cancelled batches":            {store.BatchesText(store.BatchFilter{State: "cancelled"}), []any{9, 10}, "batches_cancelled (id<?)", 1},
		"failing batches":              {store.BatchesText(store.BatchFilter{Order: store.ByFailures}), []any{9, 10}, "batches_failed (failed_tasks>? AND failed_tasks<?)", 1},
		"failing batches of a pool":    {store.BatchesText(store.BatchFilter{Pool: "p", Order: store.ByFailures}), []any{9, "p", 10}, "batches_failed_of_pool (pool=? AND failed_tasks>? AND failed_tasks<?)", 1},
		"ended batches of a pool":      {store.BatchesText(store.BatchFilter{Pool: "p", Order: store.ByEnd}), []any{9, "p", 10}, "batches_ended_of_pool (pool=? AND ended_at>? AND ended_at<?)", 1},
		"callers before one":           {store.CallersBeforeText(), []any{"p", 9, 58000, 1000}, "tasks_of_batch (batch=? AND state=? AND id<?)", 3},
		"slots of callers":             {store.CallersBeforeText(), []any{"p", 9, 58000, 1000}, "grants_of_callers (pool=?", 1},
		"the next callers":             {store.NextCallersText(), []any{"p", 58000, 10}, "tasks_in_line (pool=? AND batch=?", 3},
		"leases of a pool":             {store.LeasesText(), []any{"p", "@", "A", 10}, "tasks_open_of_pool (pool=? AND device>? AND device<?)", 1},
		"a sample of what waits":       {store.SampleText(), []any{`[{"n":0,"batch":1,"at":5}]`}, "tasks_of_batch (batch=? AND state=? AND id>?)", 1},
		"the ends of what waits":       {store.PendingRangesText(), []any{`[1]`}, "tasks_of_batch (batch=? AND state=?)", 2},
		"what a pool started, by page": {store.StartsText(), []any{"p", int64(1) << 53, 500}, "attempts_of_pool (pool=? AND token<?)", 1},
	} {
		found := 0
		for _, detail := range l.sqlitePlan(c.text, c.args...) {
			if words := strings.Fields(detail); words[0] == "SCAN" && (words[1] == "t" || words[1] == "tasks" || words[1] == "attempts") {
				t.Errorf("%s: all of them: %s", name, detail)
			}
			if strings.Contains(detail, c.index) {
				found++
			}
		}
		if found != c.times {
			t.Errorf("%s: %d readings by %s, want %d", name, found, c.index, c.times)
		}
	}
}

func (l *ledger) sqlitePlan(query string, args ...any) (plan []string) {
	l.Helper()
	rows, err := l.DB().QueryContext(l.Context(), `EXPLAIN QUERY PLAN `+l.Text(query), args...)
	l.must(err)
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		l.must(rows.Scan(&id, &parent, &unused, &detail))
		plan = append(plan, detail)
	}
	l.must(rows.Err())
	return plan
}

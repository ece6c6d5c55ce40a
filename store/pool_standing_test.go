package store_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// poolRank returns the status of one pool. It checks that PoolRanks and PoolOverviewsByName return the same status.
func (l *ledger) poolRank(pool string) store.PoolStatus {
	l.Helper()
	ranks, err := l.PoolRanks(l.Context(), pool)
	l.must(err)
	if len(ranks) != 1 || ranks[0].Name != pool {
		l.Fatalf("%s: %+v", pool, ranks)
	}
	views, err := l.PoolOverviewsByName(l.Context(), []string{pool, "nowhere"}, 10)
	l.must(err)
	if len(views) != 1 || views[0].PoolStatus != ranks[0].PoolStatus {
		l.Fatalf("%+v as ranks, %+v as views", ranks, views)
	}
	return ranks[0].PoolStatus
}

func TestStandingOfPools(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("a_1", 2)
		l.putPool("ab1", 2)
		l.putPool("Berlin", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "a_1"}, "x", "y", "z")
		want := func(held int, pending int64) {
			l.Helper()
			if diff := cmp.Diff(store.PoolStatus{Held: held, Pending: pending}, l.poolRank("a_1")); diff != "" {
				l.Error(diff)
			}
		}
		want(0, 3)
		g := l.mustGrant(ids[0], "x", "a_1", 0)
		want(1, 2)
		l.recordResult(g, store.BySuccess, "")
		want(0, 2)
		for folded := 1; folded > 0; { // The status must be the same from folded counts and from counts that are not folded yet.
			var err error
			folded, _, err = l.Fold(l.Context(), 2)
			l.must(err)
			want(0, 2)
		}
		for part, names := range map[string]string{"": "Berlin a_1 ab1", "A": "a_1 ab1", "_": "a_1", "LIN": "Berlin", "%": "", `\`: ""} {
			ranks, err := l.PoolRanks(l.Context(), part)
			l.must(err)
			var got []string
			for _, r := range ranks {
				got = append(got, r.Name)
			}
			if strings.Join(got, " ") != names {
				l.Errorf("%q is part of %v, want %s", part, got, names)
			}
		}
	})
}

// TestStalledPools checks that a pool counts as stalled only if there is no known reason for its tasks to wait.
func TestStalledPools(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, "x", "y")
		stalls := func(want bool, why string) {
			l.Helper()
			if got := l.poolRank("p").Stalled; got != want {
				l.Errorf("%s: stalled is %t", why, got)
			}
		}
		const ago = `{now} - 660000 * {ms}`
		stalls(false, "a new batch in a new pool")
		l.exec(`UPDATE batches SET created_at = ` + ago)
		stalls(false, "a new pool")
		l.exec(`UPDATE pools SET updated_at = ` + ago)
		stalls(true, "all is old")
		for _, c := range []struct{ column, value, why string }{
			{"batches SET paused", "true", "a paused batch"},
			{"batches SET not_before", "{now}", "a batch that may start just now"},
			{"tasks SET retry_at", "{now}", "tasks that may start just now"},
			{"pools SET paused", "true", "a paused pool"},
			{"pools SET capacity", "0", "no slots"},
		} {
			l.exec(`UPDATE ` + c.column + ` = ` + c.value)
			stalls(false, c.why)
			undone := map[string]string{"batches SET not_before": "NULL", "tasks SET retry_at": "NULL", "pools SET capacity": "2"}[c.column]
			if undone == "" {
				undone = "false"
			}
			l.exec(`UPDATE ` + c.column + ` = ` + undone)
		}
		for _, table := range []string{"batches", "pools"} {
			l.exec(`UPDATE ` + table + ` SET opens_at = {now} - 60000 * {ms}, closes_at = {now} + 86400000 * {ms}`)
			stalls(false, "a window that opened just now, of "+table)
			l.exec(`UPDATE ` + table + ` SET opens_at = NULL, closes_at = NULL`)
		}
		l.exec(`UPDATE tasks SET retry_at = {now} + 3600000 * {ms} WHERE id = $1`, ids[0])
		stalls(true, "its first task alone begins later")
		l.exec(`UPDATE tasks SET retry_at = NULL`)
		g := l.mustGrant(ids[0], "x", "p", 0)
		stalls(false, "a grant of just now")
		l.exec(`UPDATE grants SET granted_at = ` + ago)
		stalls(true, "a grant of long ago")
		l.recordResult(g, store.BySuccess, "")
		l.exec(`UPDATE attempts SET granted_at = {now}`)
		stalls(false, "a grant that was and ended just now")
		l.exec(`UPDATE attempts SET granted_at = ` + ago)
		stalls(true, "all is old again")
		l.mustGrant(ids[1], "y", "p", 0)
		l.exec(`UPDATE grants SET granted_at = ` + ago)
		stalls(false, "nothing waits")
	})
}

func TestClosedPools(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		for _, c := range []struct {
			opens, closes string
			want          bool
		}{{"NULL", "NULL", false}, {"{now} - 1000 * {ms}", "{now} + 60000 * {ms}", false}, {"{now} + 60000 * {ms}", "{now} + 90000 * {ms}", true}} {
			l.exec(`UPDATE pools SET opens_at = ` + c.opens + `, closes_at = ` + c.closes)
			if got := l.poolRank("p").Closed; got != c.want {
				l.Errorf("from %s to %s: closed is %t", c.opens, c.closes, got)
			}
		}
	})
}

// TestRankingPoolsCountsNoTasks checks that the ranking of 3,000 pools counts no tasks. It may read only the stored counts, the grants in
// force, and one task of each pool that may be stalled.
func TestRankingPoolsCountsNoTasks(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const pools, tasks, grants = 3000, 40, 2000
	l.exec(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p' || n, 10, 1000, now(), now() - interval '1 day' FROM generate_series(0, 2999) n`)
	l.exec(`INSERT INTO batches (pool, created_at, total) SELECT 'p' || n % 3000, now() - interval '1 day', 40 FROM generate_series(1, 6000) n`)
	l.exec(`INSERT INTO tasks (batch, pool, device) SELECT b.id, b.pool, 'd' || b.id || '-' || n FROM batches b, generate_series(1, 20) n`)
	l.exec(`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
		SELECT id, batch, pool, 0, device, id, id || '.1.x', 1, now(), now(), now(), 1000
		FROM (SELECT DISTINCT ON (pool) * FROM tasks ORDER BY pool, id) AS firsts LIMIT 2000`)
	l.exec(`INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by)
		SELECT 1000000 + n, n, 1, 'd', 'p' || n % 3000, 0, 'x', now(), now(), 'failed' FROM generate_series(1, 60000) n`)
	for folded := 1; folded > 0; {
		var err error
		folded, _, err = l.Fold(l.Context(), 5000)
		l.must(err)
	}
	for _, when := range []string{"before statistics", "after them"} {
		plan := l.explainAnalyze(store.PoolRanksText(), "%")
		if maxRowsRead(plan) > 3*pools {
			l.Errorf("%s: %d rows are looked at:\n%s", when, maxRowsRead(plan), strings.Join(plan, "\n"))
		}
		l.exec(`ANALYZE`)
	}
	ranks, err := l.PoolRanks(l.Context(), "")
	l.must(err)
	stalled, pending := 0, int64(0)
	for _, r := range ranks {
		pending += r.Pending
		if r.Stalled {
			stalled++
		}
	}
	if len(ranks) != pools || pending != 6000*tasks-grants || stalled != 0 { // Each pool has started a task just now.
		l.Errorf("%d pools, %d tasks wait, %d are stalled", len(ranks), pending, stalled)
	}
	l.exec(`DELETE FROM attempts`)
	if plan := l.explainAnalyze(store.PoolRanksText(), "%"); maxRowsRead(plan) > 3*pools {
		l.Errorf("1,000 stalled: %d rows are looked at:\n%s", maxRowsRead(plan), strings.Join(plan, "\n"))
	}
	ranks, err = l.PoolRanks(l.Context(), "")
	l.must(err)
	stalled = 0
	for _, r := range ranks {
		if r.Stalled {
			stalled++
		}
	}
	if stalled != pools-grants {
		l.Errorf("%d are stalled, want %d", stalled, pools-grants)
	}
}

// TestFailingPools checks when a pool counts as failing: at least five attempts failed within the last five minutes, and these are at least
// a fifth of the attempts that ended.
func TestFailingPools(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for pool, c := range map[string]struct {
			minutesAgo, ended, failed int
			want                      bool
		}{
			"few":    {0, 4, 4, false},
			"some":   {0, 26, 5, false},
			"many":   {0, 25, 5, true},
			"recent": {5, 5, 5, true},
			"old":    {6, 5, 5, false},
			"none":   {0, 9, 0, false},
		} {
			l.putPool(pool, 1)
			l.exec(`INSERT INTO pool_minutes (pool, minute, granted, ended, lapsed, failed, capacity) VALUES ($1, {this minute} - CAST($2 AS bigint), 0, $3, 0, $4, 1)`,
				pool, c.minutesAgo, c.ended, c.failed)
			if got := l.poolRank(pool).Failing; got != c.want {
				l.Errorf("%s: failing %v, want %v", pool, got, c.want)
			}
		}
	})
}

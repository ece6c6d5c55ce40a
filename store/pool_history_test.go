package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// readHistory reads all pages of a pool's history that match a filter, as a client does.
func (l *ledger) readHistory(f store.HoldingFilter) (all []store.Holding, pages int) {
	l.Helper()
	for {
		pages++
		page, bound, err := l.Holdings(l.Context(), f)
		l.must(err)
		all = append(all, page...)
		end := bound.End
		switch {
		case len(page) == f.Limit:
			end = page[len(page)-1].ID
		case !bound.More:
			return all, pages
		}
		if f.Newest {
			f.Before = end
		} else {
			f.After = end
		}
	}
}

// holdingText returns a holding (the use of a slot by one grant) as text.
func holdingText(h store.Holding) string {
	if h.EndedAt == nil {
		return fmt.Sprintf("slot %d %s task %d batch %d held", h.Slot, h.Device, h.Task, h.Batch)
	}
	return fmt.Sprintf("slot %d %s task %d batch %d %s", h.Slot, h.Device, h.Task, h.Batch, h.EndedBy)
}

func holdingTexts(all []store.Holding) (list []string) {
	for _, h := range all {
		list = append(list, holdingText(h))
	}
	return list
}

// TestHistoryHasEveryHolding checks that the history of a pool has each grant once, in whichever way the grant ended. The history is read
// in pages of several sizes, in both orders, and with a filter of slots.
func TestHistoryHasEveryHolding(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		l.putPool("q", 4)
		names := deviceNames(4)
		batch, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 9}, names...)
		_, other := l.queueBatch(store.Batch{Pool: "q"}, "other")
		l.recordResult(l.mustGrant(other[0], "other", "q", 1), store.BySuccess, "")
		var want []string // ordered by their ends
		end := func(i, slot int, by store.EndCause, do func(store.Grant)) {
			do(l.mustGrant(ids[i], names[i], "p", slot))
			want = append(want, fmt.Sprintf("slot %d %s task %d batch %d %s", slot, names[i], ids[i], batch.ID, by))
		}
		result := func(by store.EndCause) func(store.Grant) {
			return func(g store.Grant) { l.recordResult(g, by, "") }
		}
		end(0, 2, store.ByFailure, result(store.ByFailure))
		end(1, 1, store.ByFailure, result(store.ByFailure))
		end(0, 1, store.ByReturn, result(store.ByReturn))
		end(2, 1, store.ByLapse, func(store.Grant) { l.awaitLapsed(); l.reapAll() })
		end(0, 0, store.BySuccess, result(store.BySuccess))
		end(3, 1, store.ByOperator, func(store.Grant) { l.must(errOf(l.forceRelease(1, store.ForcedRelease{AtOnce: true}))) })
		l.mustGrant(ids[2], names[2], "p", 3)
		l.mustGrant(ids[1], names[1], "p", 1)
		held := []string{
			fmt.Sprintf("slot 3 %s task %d batch %d held", names[2], ids[2], batch.ID), fmt.Sprintf("slot 1 %s task %d batch %d held", names[1], ids[1], batch.ID),
		}
		whole := append(slices.Clone(want), held...)
		for _, limit := range []int{1, 2, 3, 100} {
			all, _ := l.readHistory(store.HoldingFilter{Pool: "p", Limit: limit})
			if diff := cmp.Diff(whole, holdingTexts(all)); diff != "" {
				l.Errorf("by %d, oldest first: %s", limit, diff)
			}
			all, _ = l.readHistory(store.HoldingFilter{Pool: "p", Limit: limit, Newest: true})
			slices.Reverse(all)
			if diff := cmp.Diff(whole, holdingTexts(all)); diff != "" {
				l.Errorf("by %d, newest first: %s", limit, diff)
			}
			all, _ = l.readHistory(store.HoldingFilter{Pool: "p", Slots: &store.SlotRange{First: 1, Last: 1}, Limit: limit})
			if diff := cmp.Diff([]string{want[1], want[2], want[3], want[5], held[1]}, holdingTexts(all)); diff != "" {
				l.Errorf("by %d, of slot 1: %s", limit, diff)
			}
		}
		all, _ := l.readHistory(store.HoldingFilter{Pool: "p", Limit: 100})
		since := *all[3].EndedAt
		if late, _ := l.readHistory(store.HoldingFilter{Pool: "p", Limit: 2, From: since}); len(late) < 4 || late[0].EndedAt.Before(since) {
			l.Errorf("since %v: %v", since, holdingTexts(late))
		}
		if early, _ := l.readHistory(store.HoldingFilter{Pool: "p", Limit: 2, To: since}); len(early) < 2 || len(early) > 3 || !early[len(early)-1].EndedAt.Before(since) {
			l.Errorf("before %v: %v", since, holdingTexts(early))
		}
		for slot, list := range groupBySlot(all) {
			for i := range list[1:] {
				if list[i].EndedAt.After(list[i+1].GrantedAt) {
					l.Errorf("slot %d: %+v overlaps %+v", slot, list[i], list[i+1])
				}
			}
		}
	})
}

func groupBySlot(all []store.Holding) map[int][]store.Holding {
	slots := map[int][]store.Holding{}
	for _, h := range all {
		slots[h.Slot] = append(slots[h.Slot], h)
	}
	return slots
}

// TestTimesAreFoundInTheLog checks the search for the event at a given time. It must find the same event as a reading of the whole log.
func TestTimesAreFoundInTheLog(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		near := func(at time.Time) (id int64) {
			l.must(l.DB().QueryRowContext(l.Context(), l.Text(store.EventNearText), at.UnixMilli()).Scan(&id))
			return id
		}
		if id := near(time.Now()); id > 1 {
			l.Errorf("of an empty log: %d", id)
		}
		begin := time.Now().Add(-time.Hour).Truncate(time.Second)
		draw := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // random times to search for
		at, id := 0, int64(0)
		want := map[int]int64{}
		for range 40 {
			id += 1 + draw.Int64N(50) // The ids between were used by transactions that were rolled back.
			next := at + draw.IntN(4)
			for ; at < next; at++ {
				want[at] = id
			}
			l.exec(`INSERT INTO events (id, at, kind) VALUES ($1, {epoch} + CAST($2 AS bigint) * {ms}, 'x')`, id, begin.Add(time.Duration(at-1)*time.Second).UnixMilli())
		}
		for second, first := range want {
			got, exists := near(begin.Add(time.Duration(second)*time.Second)), 0
			l.must(l.DB().QueryRowContext(l.Context(), l.Text(`SELECT count(*) FROM events WHERE id >= $1 AND id < $2`), min(got, first), max(got, first)).Scan(&exists))
			if exists != 0 {
				l.Errorf("second %d begins at %d, found %d", second, first, got)
			}
		}
		if got := near(time.Now()); got != id+1 {
			l.Errorf("the present is behind %d: %d", id, got)
		}
	})
}

// TestHistoryIsServedOrBounded checks that a page of a pool's history reads a bounded number of rows, however long
// the log is and whether or not Postgres has statistics.
func TestHistoryIsServedOrBounded(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.exec(`INSERT INTO events (at, kind, actor, pool, batch, task, device, token)
		SELECT now(), CASE WHEN i % 2 = 0 THEN 'task.granted' ELSE 'task.succeeded' END, 'd', 'p' || i % 4 / 2, 1, i / 2, 'd', 1 + i / 2 FROM generate_series(0, 199999) AS i`)
	l.exec(`INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by)
		SELECT 1 + i, i, 1, 'd', 'p' || i % 2, i / 2 % 50, '', now(), now(), 'succeeded' FROM generate_series(0, 99999) AS i`)
	hour := time.Now().Add(-time.Hour)
	for _, statistics := range []string{`SELECT 1`, `ANALYZE`} {
		l.exec(statistics)
		for name, test := range map[string]struct {
			filter store.HoldingFilter
			rows   int
		}{
			"all":        {store.HoldingFilter{Pool: "p1", Limit: 100}, 300},
			"newest":     {store.HoldingFilter{Pool: "p1", Limit: 100, Newest: true, From: hour}, 300},
			"of a slot":  {store.HoldingFilter{Pool: "p1", Limit: 100, Newest: true, Slots: &store.SlotRange{First: 17, Last: 17}}, 10_500},
			"of nowhere": {store.HoldingFilter{Pool: "p1", Limit: 100, Slots: &store.SlotRange{First: 99, Last: 99}}, store.MaxExaminedEvents},
		} {
			query, args, err := l.HoldingsQuery(l.Context(), test.filter)
			l.must(err)
			plan, rows := l.explainAnalyze(query, args...), test.rows
			if statistics != "ANALYZE" {
				rows = store.MaxExaminedEvents // Without statistics, Postgres estimates fewer rows.
			}
			if text := strings.Join(plan, "\n"); !strings.Contains(text, "events_of_pool") || !strings.Contains(text, "attempts_pkey") || strings.Contains(text, "Seq Scan") || maxRowsRead(plan) > rows {
				t.Errorf("after %s: %s: %d rows, want %d:\n%s", statistics, name, maxRowsRead(plan), rows, text)
			}
		}
		if plan := strings.Join(l.explainAnalyze(store.EventNearText, hour.UnixMilli()), "\n"); strings.Contains(plan, "Seq Scan") {
			t.Errorf("after %s: a time is looked for in all events:\n%s", statistics, plan)
		}
		if plan := strings.Join(l.explainAnalyze(store.MinutesText, "p1", 0, 50_000), "\n"); strings.Contains(plan, "Seq Scan on events") || strings.Contains(plan, "Seq Scan on pool_minutes") {
			t.Errorf("after %s: minutes of all pools:\n%s", statistics, plan)
		}
	}
}

// TestHistoryGoesOnBehindWhatItLookedAt checks the history of a slot that is rarely used. One call searches one range of event ids,
// and the next call must continue behind this range.
func TestHistoryGoesOnBehindWhatItLookedAt(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.exec(`INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by)
		SELECT i, i, 1, 'd', 'p', CASE WHEN i IN (3, 29990) THEN 17 ELSE 1 END, '', now(), now(), 'succeeded' FROM generate_series(1, 30000) AS i`)
	l.exec(`INSERT INTO events (at, kind, pool, batch, task, device, token) SELECT now(), 'task.succeeded', 'p', 1, i, 'd', i FROM generate_series(1, 30000) AS i`)
	for _, newest := range []bool{true, false} {
		found, pages := l.readHistory(store.HoldingFilter{Pool: "p", Slots: &store.SlotRange{First: 17, Last: 17}, Newest: newest, Limit: 5})
		if len(found) != 2 || pages != 2 {
			t.Errorf("newest %v: %v in %d pages", newest, holdingTexts(found), pages)
		}
	}
}

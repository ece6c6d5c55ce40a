package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// openWithManyEvents returns a ledger with 200,000 events of devices in four pools. One event in 40,000 was caused
// by an operator, and one in 100,000 has a rare kind. Device d7 has a task in batch 8.
func openWithManyEvents(t *testing.T) *ledger {
	t.Helper()
	l := openPostgres(t)
	l.exec(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p' || n, 1, 1000, now(), now() FROM generate_series(0, 3) n`)
	l.exec(`INSERT INTO batches (pool, created_at) SELECT 'p' || n % 4, now() FROM generate_series(0, 19) n`)
	l.exec(`INSERT INTO tasks (batch, pool, device) VALUES (8, 'p3', 'd7')`)
	l.exec(`INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device)
		SELECT now(), CASE WHEN i % 100000 = 0 THEN 'rare' ELSE 'task.granted' END, CASE WHEN i % 40000 = 0 THEN 'ann' ELSE 'd' || i % 1000 END,
			CASE WHEN i % 40000 = 0 THEN 'operator' ELSE 'device' END,
			'p' || i % 4, 1 + i % 20, CASE WHEN i % 100000 = 7 THEN 1 ELSE 1000 + i END, 'd' || i % 1000
		FROM generate_series(1, 200000) AS i`)
	return l
}

// TestFiltersOfEventsAreServedOrBounded checks lists of events with every filter: no list reads more than
// MaxExaminedRows events at a time, whether or not Postgres has statistics.
func TestFiltersOfEventsAreServedOrBounded(t *testing.T) {
	t.Parallel()
	l := openWithManyEvents(t)
	for _, statistics := range []string{`SELECT 1`, `ANALYZE`} {
		l.exec(statistics)
		for name, test := range map[string]struct {
			filter store.EventFilter
			index  string
			rows   int
		}{
			"all":          {store.EventFilter{}, "events_pkey", 100},
			"device":       {store.EventFilter{Device: "d7"}, "events_of_device", 200},
			"pool":         {store.EventFilter{Pool: "p1"}, "events_of_pool", 100},
			"operator":     {store.EventFilter{Actor: "ann"}, "events_of_actor", 200},
			"device actor": {store.EventFilter{Actor: "d7"}, "events_of_device", 200},
			"task":         {store.EventFilter{Task: 1}, "events_of_device", 200},
			"task, gone":   {store.EventFilter{Task: 2}, "events_pkey", store.MaxExaminedRows},
			"batch":        {store.EventFilter{Batch: 8}, "events_of_pool", store.MaxExaminedRows},
			"kind":         {store.EventFilter{Kind: "rare"}, "events_of_kind", 100},
			"task kind":    {store.EventFilter{Kind: "task.suppressed"}, "events_pkey", store.MaxExaminedRows},
			"operators":    {store.EventFilter{ActorKind: store.ActorOperator}, "events_of_actor_kind", 100},
			"of a pool":    {store.EventFilter{ActorKind: store.ActorOperator, Pool: "p1"}, "events_of_actor_kind", 100},
			"kind, actor":  {store.EventFilter{ActorKind: store.ActorOperator, Kind: "rare", Pool: "p1"}, "events_of_kind", 100},
		} {
			for _, test.filter.Newest = range []bool{false, true} {
				filter := test.filter
				bound, err := l.EventSearchBound(l.Context(), filter)
				l.must(err)
				filter.LimitTo(bound)
				query, args, err := l.EventsQuery(l.Context(), filter)
				l.must(err)
				plan := l.explainAnalyze(query, args...)
				if text := strings.Join(plan, "\n"); !strings.Contains(text, test.index) || strings.Contains(text, "Seq Scan on events") || maxRowsRead(plan) > test.rows {
					t.Errorf("after %s: %s: %d rows, want %d by %s:\n%s", statistics, name, maxRowsRead(plan), test.rows, test.index, text)
				}
			}
		}
	}
}

// readEventPages reads all pages of the events that match a filter, as a client does. It returns the ids and the
// number of pages.
func (l *ledger) readEventPages(f store.EventFilter) (found []int64, pages int) {
	l.Helper()
	asked := f
	for {
		pages++
		bound, err := l.EventSearchBound(l.Context(), asked)
		l.must(err)
		f := asked
		f.LimitTo(bound)
		page, err := l.Events(l.Context(), f)
		l.must(err)
		for _, e := range page {
			found = append(found, e.ID)
		}
		end := bound.End
		switch {
		case len(page) == f.Limit:
			end = page[len(page)-1].ID
		case !bound.More:
			return found, pages
		}
		if f.Newest {
			asked.Before = end
		} else {
			asked.After = end
		}
	}
}

func TestPagesOfEventsFindEachMatchOnce(t *testing.T) {
	t.Parallel()
	l := openWithManyEvents(t)
	for name, test := range map[string]struct {
		filter store.EventFilter
		want   []int64
		pages  int
	}{
		"kind":        {store.EventFilter{Kind: "rare"}, []int64{100_000, 200_000}, 2},
		"operator":    {store.EventFilter{Actor: "ann"}, []int64{40_000, 80_000, 120_000, 160_000, 200_000}, 3},
		"operators":   {store.EventFilter{ActorKind: store.ActorOperator}, []int64{40_000, 80_000, 120_000, 160_000, 200_000}, 3},
		"d0, others":  {store.EventFilter{Device: "d0", ActorKind: store.ActorOperator}, []int64{40_000, 80_000, 120_000, 160_000, 200_000}, 3},
		"task":        {store.EventFilter{Task: 1}, []int64{7, 100_007}, 2},
		"task, gone":  {store.EventFilter{Task: 1008}, []int64{8}, 5},
		"batch, kind": {store.EventFilter{Batch: 1, Kind: "rare"}, []int64{100_000, 200_000}, 3},
		"pool, kind":  {store.EventFilter{Pool: "p1", Kind: "rare"}, nil, 2},
		"between":     {store.EventFilter{Kind: "rare", After: 100_000, Before: 200_000}, nil, 4},
	} {
		test.filter.Limit = 2
		if got, pages := l.readEventPages(test.filter); !slices.Equal(got, test.want) || pages > test.pages {
			t.Errorf("%s: %v in %d pages, want %v in %d", name, got, pages, test.want, test.pages)
		}
		test.filter.Newest = true
		slices.Reverse(test.want)
		if got, pages := l.readEventPages(test.filter); !slices.Equal(got, test.want) || pages > test.pages {
			t.Errorf("%s, newest first: %v in %d pages, want %v in %d", name, got, pages, test.want, test.pages)
		}
	}
}

// TestEventsOfATimeAreFoundByTheirIDs checks that a list of the events of one period does not read the events of
// other days.
func TestEventsOfATimeAreFoundByTheirIDs(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		day := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		for i := range 300 { // one event each hour; every third one was committed a little late
			at := day.Add(time.Duration(i) * time.Hour)
			if i%3 == 0 {
				at = at.Add(-20 * time.Second)
			}
			l.exec(`INSERT INTO events (at, kind) VALUES ({epoch} + $1 * {ms}, 'k')`, at.UnixMilli())
		}
		for name, test := range map[string]struct {
			since, until time.Time
			want         []int64
		}{
			"from on":      {day.Add(297 * time.Hour), time.Time{}, []int64{299, 300}},
			"before":       {time.Time{}, day.Add(2 * time.Hour), []int64{1, 2}},
			"between":      {day.Add(99 * time.Hour), day.Add(102 * time.Hour), []int64{101, 102, 103}},
			"after all":    {day.Add(400 * time.Hour), time.Time{}, nil},
			"before all":   {time.Time{}, day.Add(-time.Hour), nil},
			"none between": {day.Add(10*time.Hour + time.Minute), day.Add(10*time.Hour + 2*time.Minute), nil},
		} {
			for _, newest := range []bool{false, true} {
				f, err := l.WithIDRange(l.Context(), store.EventFilter{Since: test.since, Until: test.until, Newest: newest, Limit: 2})
				l.must(err)
				got, pages := l.readEventPages(f)
				if slices.Sort(got); !slices.Equal(got, test.want) || pages > 1+len(test.want)/2 {
					l.Errorf("%s, newest %v: %v in %d pages, want %v", name, newest, got, pages, test.want)
				}
			}
		}
	})
}

// TestATimeBoundsWhatIsRead checks that a list of the events between two times does not read events of other days.
func TestATimeBoundsWhatIsRead(t *testing.T) {
	t.Parallel()
	l := openWithManyEvents(t)
	l.exec(`UPDATE events SET at = to_timestamp(1700000000 + id * 60)`)
	at := time.Unix(1700000000+150_000*60, 0)
	for _, newest := range []bool{false, true} {
		f, err := l.WithIDRange(l.Context(), store.EventFilter{Kind: "rare", Since: at, Until: at.Add(time.Hour), Newest: newest, Limit: 2})
		l.must(err)
		if f.After < 149_990 || f.Before > 150_070 {
			t.Errorf("from %d to %d", f.After, f.Before)
		}
		if got, pages := l.readEventPages(f); pages != 1 || len(got) != 0 {
			t.Errorf("%v in %d pages", got, pages)
		}
	}
}

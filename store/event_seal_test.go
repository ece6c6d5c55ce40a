package store_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// sealBlocks seals the events up to lastEvent in blocks of this size, as long as a block is due.
func (l *ledger) sealBlocks(lastEvent int64, size int) {
	l.Helper()
	for {
		n, err := l.SealEvents(l.Context(), lastEvent, size)
		l.must(err)
		if n < size {
			return
		}
	}
}

// sealPage is the result of CheckSeals. Seals has the sealed blocks, and Unsealed has the entry of the events that are not sealed yet.
type sealPage struct {
	Seals    []store.CheckedSeal
	Unsealed store.CheckedSeal
	More     bool
}

func (l *ledger) readSeals(after int64, limit int) (page sealPage) {
	l.Helper()
	seals, more, err := l.CheckSeals(l.Context(), after, limit)
	l.must(err)
	page = sealPage{Seals: seals, More: more}
	if n := len(seals); n > 0 && seals[n-1].At.IsZero() {
		page.Seals, page.Unsealed = seals[:n-1], seals[n-1]
	}
	return page
}

// checkSeals returns all seals. broken has the field Last of each seal whose stored hash differs from the computed hash.
func (l *ledger) checkSeals() (page sealPage, broken []int64) {
	l.Helper()
	page = l.readSeals(-1, 1000)
	for _, s := range page.Seals {
		if s.Hash != s.Computed {
			broken = append(broken, s.Last)
		}
	}
	return page, broken
}

// openSealed opens a ledger with the events 10, 20, 30 to 100, of which 10 to 90 are sealed in three blocks. It returns a function that
// runs a check on this ledger and then undoes the changes of the check.
func (l *ledger) openSealed() (check func(name string, run func())) {
	l.Helper()
	for id := 10; id <= 100; id += 10 {
		l.exec(`INSERT INTO events (id, at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
			VALUES ($1, {now}, 'k', 'a', 'operator', 'p', 1, 2, 'd', 3, $2)`, id, fmt.Sprint("detail ", id))
	}
	l.sealBlocks(95, 3)
	for _, table := range []string{"events", "event_seals"} {
		l.exec(`CREATE TABLE kept_` + table + ` AS SELECT * FROM ` + table)
	}
	return func(name string, run func()) {
		l.Helper()
		if page, broken := l.checkSeals(); len(page.Seals) != 4 || page.Unsealed.Found != 1 || len(broken) > 0 || page.More {
			l.Fatalf("before %s: broken %v in %+v", name, broken, page)
		}
		run()
		for _, table := range []string{"events", "event_seals"} {
			l.exec(`DELETE FROM ` + table)
			l.exec(`INSERT INTO ` + table + ` SELECT * FROM kept_` + table)
		}
	}
}

func (l *ledger) columnsOf(table string) []string {
	l.Helper()
	rows, err := l.DB().QueryContext(l.Context(), `SELECT * FROM `+table+` LIMIT 0`)
	l.must(err)
	defer rows.Close()
	names, err := rows.Columns()
	l.must(err)
	l.must(rows.Err())
	return names
}

// changeSQL returns the SET clause of a statement that changes column in the events or in their seals.
func changeSQL(column string) string {
	switch column {
	case "id", "batch", "task", "token", "last", "after", "events":
		return column + ` = ` + column + ` + 1`
	case "at":
		return `at = at + 1 * {ms}`
	case "hash":
		return `hash = '00' || substr(hash, 3)`
	}
	return column + ` = ` + column + ` || 'x'`
}

// TestSealsFindEachChange changes the events in each possible way without changing their seals, and changes seals. After each change, it
// checks which blocks are broken.
func TestSealsFindEachChange(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		check := l.openSealed()
		want := map[string][]int64{
			`UPDATE events SET kind = 'ka', actor = '' WHERE id = 50`:   {60},
			`DELETE FROM events WHERE id = 40`:                          {60},
			`DELETE FROM events WHERE id = 50`:                          {60},
			`DELETE FROM events WHERE id = 60`:                          {60},
			`DELETE FROM events WHERE id BETWEEN 40 AND 60`:             {60},
			`INSERT INTO events (id, at, kind) VALUES (55, {now}, 'k')`: {60},
			`INSERT INTO events (id, at, kind) VALUES (31, {now}, 'k')`: {60},
			`INSERT INTO events (id, at, kind) VALUES (59, {now}, 'k')`: {60},
			`INSERT INTO events (id, at, kind) VALUES (1, {now}, 'k')`:  {30},
			`INSERT INTO events (id, at, kind) VALUES (0, {now}, 'k')`:  {0},
			`INSERT INTO events (id, at, kind) VALUES (-7, {now}, 'k')`: {0},
			`DELETE FROM event_seals WHERE last = 60`:                   {90},
			`DELETE FROM event_seals WHERE last = 0`:                    {30},
			`DELETE FROM event_seals WHERE last <= 30`:                  {60},
		}
		for _, column := range l.columnsOf("events") {
			want[`UPDATE events SET `+changeSQL(column)+` WHERE id = 50`] = []int64{60}
		}
		for _, column := range l.columnsOf("event_seals") {
			want[`UPDATE event_seals SET `+changeSQL(column)+` WHERE last = 60`] = []int64{60}
		}
		want[`UPDATE event_seals SET `+changeSQL("last")+` WHERE last = 60`] = []int64{61}
		want[`UPDATE event_seals SET `+changeSQL("hash")+` WHERE last = 60`] = []int64{60, 90}
		if l.Dialect() == "postgres" {
			want[`UPDATE events SET at = at + interval '1 microsecond' WHERE id = 50`] = []int64{60}
		}
		for change, want := range want {
			check(change, func() {
				l.exec(change)
				if page, broken := l.checkSeals(); !slices.Equal(broken, want) {
					l.Errorf("%s: broken %v, want %v: %+v", change, broken, want, page)
				}
			})
		}
	})
}

// TestAKeptSealFindsARewrittenChain checks two changes that only a seal that was kept elsewhere can detect: seals that were removed from
// the end of the chain, and seals that were made anew.
func TestAKeptSealFindsARewrittenChain(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		check := l.openSealed()
		kept, _ := l.checkSeals()
		last := kept.Seals[3]
		for _, change := range []string{`DELETE FROM event_seals WHERE last = 90`, `DELETE FROM event_seals WHERE last > 0`} {
			check(change, func() {
				l.exec(`UPDATE events SET detail = 'forged' WHERE id = 90`)
				l.exec(change)
				if page, broken := l.checkSeals(); len(broken) > 0 || slices.Contains(page.Seals, last) || page.Unsealed.Found < 4 {
					l.Errorf("%s: broken %v in %+v", change, broken, page)
				}
				l.sealBlocks(95, 3)
				if page, broken := l.checkSeals(); len(broken) > 0 || page.Seals[3].Last != 90 || page.Seals[3].Hash == last.Hash {
					l.Errorf("%s, sealed again: broken %v in %+v", change, broken, page)
				}
			})
		}
		check("no seal", func() {
			l.exec(`DELETE FROM event_seals`)
			if page, _ := l.checkSeals(); len(page.Seals) > 0 || page.Unsealed.Found != 10 {
				l.Errorf("without seals: %+v", page)
			}
			if _, err := l.SealEvents(l.Context(), 95, 3); err == nil || !strings.Contains(err.Error(), "last seal") {
				l.Errorf("sealing without a seal: %v", err)
			}
		})
	})
}

// TestASmallBlockWaitsAMinute checks when a block with fewer events than the limit is sealed.
func TestASmallBlockWaitsAMinute(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		l.putPool("q", 1)
		want := func(n, limit int) {
			l.Helper()
			if got, err := l.SealEvents(l.Context(), 2, limit); got != n || err != nil {
				l.Errorf("sealed %d, %v; want %d", got, err, n)
			}
		}
		l.exec(`UPDATE event_seals SET at = {now}`)
		want(0, 3)
		l.exec(`UPDATE event_seals SET at = at - 60000 * {ms}`)
		want(2, 3)
		want(0, 3)
		if page, broken := l.checkSeals(); len(broken) > 0 || len(page.Seals) != 2 || page.Seals[1].Events != 2 {
			l.Errorf("broken %v in %+v", broken, page)
		}
	})
}

// TestPagesOfSeals checks that pages continue after each other, and that a page can begin in the middle of the chain.
func TestPagesOfSeals(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.openSealed()
		all, _ := l.checkSeals()
		for after, first := range map[int64]int{-1: 0, 0: 1, 29: 1, 30: 2, 89: 3, 90: 4, 500: 4} {
			page := l.readSeals(after, 2)
			end := min(first+2, 4)
			if !slices.Equal(page.Seals, all.Seals[first:end]) || page.More != (end == first+2) || page.Unsealed.Found > 0 == page.More {
				l.Errorf("after %d: %+v", after, page)
			}
		}
		if rest := all.Unsealed; rest != (store.CheckedSeal{EventSeal: store.EventSeal{After: 90, Last: 100}, Found: 1}) {
			l.Errorf("not sealed: %+v", rest)
		}
	})
}

// TestAPageOfSealsIsBounded checks that a page ends when it has read 50,000 events.
func TestAPageOfSealsIsBounded(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const events = 51_200
	l.exec(`INSERT INTO events (at, kind) SELECT now(), 'k' FROM generate_series(1, $1)`, events)
	l.exec(`UPDATE event_seals SET at = {now}`)
	l.sealBlocks(events, 1000)
	first := l.readSeals(-1, 1000)
	if n := len(first.Seals); n != 51 || !first.More {
		t.Fatalf("%d seals, more %t", n, first.More)
	}
	if rest := l.readSeals(first.Seals[50].Last, 1000); len(rest.Seals) != 1 || rest.More || rest.Unsealed.Found != 200 || rest.Seals[0].Hash != rest.Seals[0].Computed {
		t.Errorf("the second page: %+v", rest)
	}
}

// TestRetentionKeepsTheChain checks that retention deletes whole blocks, and that the other seals still match.
func TestRetentionKeepsTheChain(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.openSealed()
		all, _ := l.checkSeals()
		retain := func(limit int, deleted int64) (page sealPage) {
			l.Helper()
			l.wantRetained(time.Nanosecond, limit, store.DeletedCounts{Events: deleted})
			page, broken := l.checkSeals()
			if len(broken) > 0 {
				l.Errorf("broken %v in %+v", broken, page)
			}
			return page
		}
		l.wantRetained(time.Hour, 100, store.DeletedCounts{})
		l.awaitCondition(func() bool {
			now, err := l.Clock(l.Context())
			l.must(err)
			return now.Sub(all.Seals[3].At) > 10*time.Millisecond
		})
		if page := retain(2, 3); len(page.Seals) != 3 || page.Seals[0].Last != 30 || page.Seals[0].Hash != all.Seals[1].Hash || page.Seals[1] != all.Seals[2] {
			l.Errorf("after the first block: %+v", page)
		}
		l.exec(`INSERT INTO events (id, at, kind) VALUES (5, {now}, 'k')`)
		if _, broken := l.checkSeals(); !slices.Equal(broken, []int64{30}) {
			l.Errorf("an event before the start of the chain: broken %v", broken)
		}
		if page := retain(100, 7); len(page.Seals) != 1 || page.Seals[0].Hash != all.Seals[3].Hash || page.Unsealed.Found != 1 || l.countRows("events") != 1 {
			l.Errorf("after all blocks: %+v", page)
		}
		retain(100, 0)
		l.sealBlocks(100, 1)
		if page, broken := l.checkSeals(); len(broken) > 0 || len(page.Seals) != 2 || page.Unsealed.Found != 0 {
			l.Errorf("one more block: broken %v in %+v", broken, page)
		}
	})
}

// TestTheChainContinuesAfterARestore checks that the numbers that a restore skips break no seal.
func TestTheChainContinuesAfterARestore(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		l.putPool("q", 1)
		l.sealBlocks(1, 1)
		l.must(errOf(l.ProtectAfterRestore(l.Context(), "op", 0)))
		mark, err := l.ReadEventPosition(l.Context(), -1)
		l.must(err)
		l.sealBlocks(mark.Last, 5)
		if page, broken := l.checkSeals(); len(broken) > 0 || len(page.Seals) != 3 || page.Seals[2].Last < 1e10 || page.Seals[2].Events != 2 || page.Unsealed.Found != 0 {
			l.Errorf("broken %v in %+v", broken, page)
		}
	})
}

// TestReplicasSealOneChain lets several replicas seal events while other replicas write them. The order in which the transactions commit
// differs from the order of the event ids. At the end, each event must be sealed once.
func TestReplicasSealOneChain(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		const events, size = 240, 4
		var writers, sealers sync.WaitGroup
		for w := range 4 {
			writers.Go(func() {
				for i := range events / 4 / 2 {
					l.writePair(fmt.Sprintf("%d.%d", w, i))
				}
			})
		}
		done := make(chan struct{})
		for range 3 {
			sealers.Go(func() {
				for isLast := false; !isLast; {
					select {
					case <-done:
						isLast = true
					default:
					}
					l.sealComplete(size)
				}
			})
		}
		writers.Wait()
		close(done)
		sealers.Wait()
		page, broken := l.checkSeals()
		if len(broken) > 0 || page.More || page.Unsealed.Found >= size || l.countRows("events") != events || len(page.Seals) <= events/size/2 {
			l.Errorf("broken %v, %d unsealed, %d seals", broken, page.Unsealed.Found, len(page.Seals))
		}
	})
}

// writePair writes two events in one transaction. Between them, other transactions may write events and commit.
func (l *ledger) writePair(detail string) {
	tx, err := l.DB().BeginTx(l.Context(), nil)
	if err != nil {
		l.Error(err)
		return
	}
	defer tx.Rollback()
	for range 2 {
		if _, err := tx.ExecContext(l.Context(), l.Text(`INSERT INTO events (at, kind, detail) VALUES ({now}, 'k', $1)`), detail); err != nil {
			l.Error(err)
			return
		}
	}
	if err := tx.Commit(); err != nil {
		l.Error(err)
	}
}

// sealComplete seals blocks of this size up to a position in the log, once the events up to this position are complete.
func (l *ledger) sealComplete(size int) {
	mark, err := l.ReadEventPosition(l.Context(), -1)
	for isComplete := false; err == nil && !isComplete; {
		isComplete, err = l.EventsComplete(l.Context(), mark)
	}
	for n := size; err == nil && n == size; {
		n, err = l.SealEvents(l.Context(), mark.Last, size)
	}
	if err != nil {
		l.Error(err)
	}
}

package store_test

import (
	"testing"
	"time"
)

// A last-seen time is written into the page of its device and to no index, also when a
// fleet reports at once: an index with last_seen in it would take each of these writes,
// and so would all other indexes.
func TestLastSeenTimesAreWrittenInPlace(t *testing.T) {
	t.Parallel()
	l := openSingle(t)
	const all, times = 2000, 5
	l.described(all)
	l.exec("ALTER TABLE devices SET (autovacuum_enabled = off)") // one that runs meanwhile keeps old versions
	for n := range times {
		l.seenAt(time.Now().Add(time.Duration(n)*time.Minute), 0, all, 1)
	}
	l.exec(`SELECT pg_stat_force_next_flush()`)
	var updated, inPlace int
	l.must(l.DB().QueryRowContext(l.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'devices'`).Scan(&updated, &inPlace))
	if updated != all*times || inPlace < updated*9/10 {
		t.Errorf("%d of %d updates in place, want nearly all of %d", inPlace, updated, all*times)
	}
}

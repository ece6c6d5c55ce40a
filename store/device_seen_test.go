package store_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestLastSeenTimesAreWrittenInPlace checks updates of last-seen times while a whole fleet reports at once. Postgres must write each new
// row version into the page of the old version and must not write to any index. If last_seen had an index, each update would write to all
// indexes of the table.
//
// A page has room for two versions of each device's row. The third version needs the place of the first version. Postgres removes the first
// version only if no transaction is open that began before the second version was written. In production, devices report once a minute, so
// few transactions are open for that long. In this test, a round takes milliseconds, and other tests on the server have transactions of
// seconds. So each round first waits until the transactions that began before the previous round have ended.
func TestLastSeenTimesAreWrittenInPlace(t *testing.T) {
	t.Parallel()
	l := openSingleConn(t)
	const all, times = 2000, 5
	l.insertDevices(all)
	l.exec("ALTER TABLE devices SET (autovacuum_enabled = off)") // An autovacuum that runs during the test keeps old versions.
	for n := range times {
		l.awaitRemovable("devices")
		l.recordSeen(time.Now().Add(time.Duration(n)*time.Minute), 0, all, 1)
		_, inPlace := l.updateCounts()
		t.Logf("round %d: %d in place", n+1, inPlace)
	}
	if updated, inPlace := l.updateCounts(); updated != all*times || inPlace < updated*9/10 {
		t.Errorf("%d of %d updates in place, want nearly all of %d", inPlace, updated, all*times)
	}
}

// TestLastSeenTimesAreInPlaceAfterALongTransaction checks updates of last-seen times while a writing transaction is open in any database of
// the server. This transaction keeps all old row versions, so the updates are not in place. After its end, updates must be in place again
// without a vacuum.
func TestLastSeenTimesAreInPlaceAfterALongTransaction(t *testing.T) {
	t.Parallel()
	l := openSingleConn(t)
	const all = 2000
	l.insertDevices(all)
	l.exec("ALTER TABLE devices SET (autovacuum_enabled = off)")
	long := beginWriteTx(t, sharedPostgres.NewDatabase(t))
	for n := range 3 {
		l.recordSeen(time.Now().Add(time.Duration(n)*time.Minute), 0, all, 1)
	}
	updated, inPlace := l.updateCounts()
	if inPlace >= updated*9/10 {
		t.Errorf("%d of %d updates in place beside a long transaction: is it seen?", inPlace, updated)
	}
	l.must(long.Rollback())
	l.awaitRemovable("devices")
	l.recordSeen(time.Now().Add(time.Hour), 0, all, 1)
	if _, after := l.updateCounts(); after-inPlace < all*9/10 {
		t.Errorf("%d of %d updates in place after the long transaction, want nearly all", after-inPlace, all)
	}
}

// updateCounts returns the number of updated rows of devices, and the number of rows among them that
// were written in place (HOT). The ledger must have only one connection, because other connections report their
// counts late.
func (l *ledger) updateCounts() (all, inPlace int) {
	l.Helper()
	l.exec(`SELECT pg_stat_force_next_flush()`)
	l.must(l.DB().QueryRowContext(l.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'devices'`).Scan(&all, &inPlace))
	return all, inPlace
}

// awaitRemovable waits until Postgres may remove all old row versions of a table. Postgres may remove them when each transaction that began
// before the last change of the table has ended, or only reads in another database.
func (l *ledger) awaitRemovable(table string) {
	l.Helper()
	l.awaitCondition(func() bool {
		return l.countRows(`pg_stat_activity WHERE pid <> pg_backend_pid() AND (SELECT min(age(xmin)) FROM `+table+`) <=
			greatest(age(backend_xid), CASE WHEN datname = current_database() THEN age(backend_xmin) END)`) == 0
	})
}

// beginWriteTx opens a transaction that has written in a database, so Postgres counts it as a writing transaction.
func beginWriteTx(t *testing.T, dsn string) *sql.Tx {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `SELECT pg_current_xact_id()`)
	}
	must.Succeed(t, err)
	return tx
}

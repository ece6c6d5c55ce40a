package store_test

import (
	"testing"
	"time"
)

// TestTheOldestTransactionMayBeOfAnotherDatabase checks that OldestTxAge of PostgresState also covers transactions of other databases of
// the server. It must, because a writing transaction in any database keeps old row versions of the devices
// (TestLastSeenTimesAreInPlaceAfterALongTransaction).
func TestTheOldestTransactionMayBeOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	l := openSingleConn(t)
	long := beginWriteTx(t, sharedPostgres.NewDatabase(t))
	var age time.Duration
	l.awaitCondition(func() bool {
		var ms float64
		l.must(long.QueryRowContext(l.Context(), `SELECT extract(epoch FROM clock_timestamp() - now()) * 1000`).Scan(&ms))
		age = time.Duration(ms) * time.Millisecond
		return age >= 100*time.Millisecond
	})
	c, err := l.PostgresState(l.Context())
	l.must(err)
	if c.OldestTxAge < age {
		t.Errorf("the oldest transaction is open for %s, want at least %s", c.OldestTxAge, age)
	}
	l.must(long.Rollback())
}

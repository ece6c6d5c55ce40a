package store_test

import (
	"testing"
	"time"
)

// A transaction that writes in another database of the server keeps the old versions of
// the devices as one of this database does (TestLastSeenTimesAreInPlaceAfterALongTransaction).
func TestTheOldestTransactionMayBeOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	l := openSingle(t)
	long := beginsToWrite(t, server.NewDatabase(t))
	var age time.Duration
	l.until(func() bool {
		var ms float64
		l.must(long.QueryRowContext(l.Context(), `SELECT extract(epoch FROM clock_timestamp() - now()) * 1000`).Scan(&ms))
		age = time.Duration(ms) * time.Millisecond
		return age >= 100*time.Millisecond
	})
	c, err := l.Condition(l.Context())
	l.must(err)
	if c.Longest < age {
		t.Errorf("the oldest transaction is open for %s, want at least %s", c.Longest, age)
	}
	l.must(long.Rollback())
}

package store_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// What a pool started is read by an index, a page at a time, however much it ever
// started. SQLite plans by its schema alone, so an empty ledger shows it.
func TestStartsAreReadByTheirPool(t *testing.T) {
	t.Parallel()
	l := openSQLite(t)
	rows, err := l.DB().QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+l.Text(store.StartsText()), "p", int64(1)<<53, 500)
	l.must(err)
	defer rows.Close()
	found := false
	for rows.Next() {
		var id, parent, unused int
		var detail string
		l.must(rows.Scan(&id, &parent, &unused, &detail))
		if detail == "SCAN attempts" || strings.HasPrefix(detail, "SCAN attempts ") || strings.HasPrefix(detail, "SCAN t ") {
			t.Errorf("all that ever started: %s", detail)
		}
		found = found || strings.HasPrefix(detail, "SEARCH attempts USING INDEX attempts_of_pool (pool=? AND token<?)")
	}
	l.must(rows.Err())
	if !found {
		t.Error("attempts are not looked up by their pool and token")
	}
}

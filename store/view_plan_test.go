package store_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// What a report reads must not grow with the tasks of other devices. SQLite
// plans by its schema alone, so an empty ledger shows it.
func TestAReportReadsTheTasksOfItsDevice(t *testing.T) {
	t.Parallel()
	l := openSQLite(t)
	rows, err := l.DB().QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+l.Text(store.ViewsText()), `[{"n":0,"name":"a"}]`)
	l.must(err)
	defer rows.Close()
	found := false
	for rows.Next() {
		var id, parent, unused int
		var detail string
		l.must(rows.Scan(&id, &parent, &unused, &detail))
		if strings.HasPrefix(detail, "SCAN t ") || detail == "SCAN t" {
			t.Errorf("all open tasks: %s", detail)
		}
		found = found || strings.HasPrefix(detail, "SEARCH t USING INDEX tasks_open_of_device (device=?")
	}
	l.must(rows.Err())
	if !found {
		t.Error("the tasks of the device are not looked up")
	}
}

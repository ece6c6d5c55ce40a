package upkeep

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// pagedDeletions is a ledger whose calls of Retain return the counts of deleted rows page by page.
type pagedDeletions struct {
	Ledger

	pages []store.DeletedCounts
}

func (l *pagedDeletions) Retain(context.Context, time.Duration, int) (store.DeletedCounts, error) {
	page := l.pages[0]
	l.pages = l.pages[1:]
	return page, nil
}

// Retain deletes rows in several pages. The counts of all pages must be added up, separately for each kind of row.
func TestDeletedRowsOfEveryKindAreCounted(t *testing.T) {
	t.Parallel()
	var full, last store.DeletedCounts
	for i := range reflect.TypeFor[store.DeletedCounts]().NumField() {
		reflect.ValueOf(&full).Elem().Field(i).SetInt(rowsPerRetain)
		reflect.ValueOf(&last).Elem().Field(i).SetInt(int64(i))
	}
	k := &Keeper{config: Config{Ledger: &pagedDeletions{pages: []store.DeletedCounts{full, last}}}}
	total, err := k.DeleteOldRows(t.Context(), 0)
	must.Succeed(t, err)
	for i := range reflect.TypeFor[store.DeletedCounts]().NumField() {
		if got := reflect.ValueOf(total).Field(i).Int(); got != rowsPerRetain+int64(i) {
			t.Errorf("%s: %d, want %d", reflect.TypeFor[store.DeletedCounts]().Field(i).Name, got, rowsPerRetain+i)
		}
	}
}

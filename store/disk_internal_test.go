package store

import (
	"errors"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
)

// TestADiskIsFullForAWhile checks that the ledger counts the disk as full for the time fullFor after a write was refused, and not longer.
func TestADiskIsFullForAWhile(t *testing.T) {
	t.Parallel()
	var f fullDisk
	began := time.Unix(1_800_000_000, 0)
	if err := f.recordDiskFull(errors.New("another"), began); errors.Is(err, ErrDiskFull) || f.checkNotFull(began) != nil {
		t.Errorf("after another error: %v, %v", err, f.checkNotFull(began))
	}
	if err := f.recordDiskFull(&pq.Error{Code: pqerror.DiskFull}, began); !errors.Is(err, ErrDiskFull) {
		t.Error(err)
	}
	if err := f.recordDiskFull(nil, began.Add(time.Second)); err != nil { // A small write succeeds.
		t.Error(err)
	}
	for after, full := range map[time.Duration]bool{0: true, fullFor - 1: true, fullFor: false} {
		if err := f.checkNotFull(began.Add(after)); errors.Is(err, ErrDiskFull) != full {
			t.Errorf("after %s: %v, want full: %t", after, err, full)
		}
	}
}

package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// touchStore notes the sizes of what it is given, and fails once.
type touchStore struct {
	Store
	sizes  []int
	failAt int
}

func (s *touchStore) TouchDevices(_ context.Context, seen map[string]time.Time) error {
	s.sizes = append(s.sizes, len(seen))
	if len(s.sizes) == s.failAt {
		return errors.New("down for the test")
	}
	return nil
}

// TestLastSeenIsWrittenInParts: a fleet that reports at once is no statement
// that locks every device, or that outlives its timeout.
func TestLastSeenIsWrittenInParts(t *testing.T) {
	t.Parallel()
	ledger := &touchStore{failAt: 2}
	d := New(Config{Store: ledger})
	for i := range 2*seenPart + 1 {
		d.seen.mark(fmt.Sprint(i), time.Unix(int64(i), 0))
	}
	if err := d.FlushSeen(t.Context()); err == nil {
		t.Error("a failure that is not told")
	}
	for range 2 { // what was written is not written again
		if err := d.FlushSeen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{seenPart, seenPart, seenPart, 1}; !slices.Equal(ledger.sizes, want) {
		t.Errorf("parts %v, want %v: the second failed", ledger.sizes, want)
	}
}

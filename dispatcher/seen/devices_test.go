package seen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// touchStore notes the sizes of what it is given, and fails once.
type touchStore struct {
	sizes  []int
	failAt int
}

func (s *touchStore) TouchDevices(_ context.Context, seen map[string]store.Seen) error {
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
	d := NewDevices(ledger, nil)
	for i := range 2*seenPart + 1 {
		d.Mark(fmt.Sprint(i), store.Seen{At: time.Unix(int64(i), 0)})
	}
	if err := d.Flush(t.Context()); err == nil {
		t.Error("a failure that is not told")
	}
	for range 2 { // what was written is not written again
		if err := d.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{seenPart, seenPart, seenPart, 1}; !slices.Equal(ledger.sizes, want) {
		t.Errorf("parts %v, want %v: the second failed", ledger.sizes, want)
	}
}

// recentList notes what it is told, and fails when asked to.
type recentList struct {
	told [][]Sighting
	down bool
}

func (l *recentList) Add(_ context.Context, seen []Sighting) error {
	if l.down {
		return ErrUnavailable
	}
	l.told = append(l.told, seen)
	return nil
}

// TestTheListIsToldOfTheNewest: also after an outage, when it was told of
// nothing, and only of as many as it keeps.
func TestTheListIsToldOfTheNewest(t *testing.T) {
	t.Parallel()
	list := &recentList{down: true}
	d := NewDevices(&touchStore{}, list)
	d.Mark("old", store.Seen{At: time.Unix(1, 0)})
	d.Mark("both", store.Seen{At: time.Unix(2, 0)})
	for range 2 {
		if err := d.FlushRecent(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
	}
	list.down = false
	d.Mark("both", store.Seen{At: time.Unix(4, 0)})
	d.Mark("new", store.Seen{At: time.Unix(3, 0)})
	if err := d.FlushRecent(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []Sighting{{Device: "both", At: time.Unix(4, 0)}, {Device: "new", At: time.Unix(3, 0)}, {Device: "old", At: time.Unix(1, 0)}}
	if diff := cmp.Diff(want, list.told[0]); diff != "" {
		t.Error(diff)
	}
	list.told = nil
	for i := range 2 * Kept {
		d.Mark(fmt.Sprint(i), store.Seen{At: time.Unix(int64(i), 0)})
	}
	if err := d.FlushRecent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := list.told[0]; len(got) != Kept || got[0].Device != "1999" || got[Kept-1].Device != "1000" {
		t.Errorf("told of %d", len(got))
	}
}

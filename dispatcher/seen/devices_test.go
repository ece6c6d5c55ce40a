package seen

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// touchStore records the size of each call, and fails in call number failAt.
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

func (*touchStore) TouchTokens(context.Context, []int64) error { return nil }

// TestLastSeenIsWrittenInParts checks that a fleet that reports at once is written in several statements. One
// statement would lock every device, or exceed its timeout.
func TestLastSeenIsWrittenInParts(t *testing.T) {
	t.Parallel()
	ledger := &touchStore{failAt: 2}
	d := NewDevices(ledger, nil, time.Now)
	for i := range 2*seenPart + 1 {
		d.Mark(fmt.Sprint(i), store.Seen{At: time.Unix(int64(i), 0)})
	}
	if err := d.Flush(t.Context()); err == nil {
		t.Error("a failure that is not told")
	}
	for range 2 { // a written part is not written again
		if err := d.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{seenPart, seenPart, seenPart, 1}; !slices.Equal(ledger.sizes, want) {
		t.Errorf("parts %v, want %v: the second failed", ledger.sizes, want)
	}
}

// recentList records what it receives, and fails if down is true.
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

// TestTheListIsToldOfTheNewest checks that the list gets the newest reports, also after an outage, and not
// more reports than it keeps.
func TestTheListIsToldOfTheNewest(t *testing.T) {
	t.Parallel()
	list := &recentList{down: true}
	d := NewDevices(&touchStore{}, list, time.Now)
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

// last records the last written value of each device.
type last map[string]store.Seen

func (l last) TouchDevices(_ context.Context, seen map[string]store.Seen) error {
	maps.Copy(l, seen)
	return nil
}

func (last) TouchTokens(context.Context, []int64) error { return nil }

// A device that polls is written about once a minute, so that the precision of its last report in the ledger
// is store.SeenWithin. A device that can be woken is written in each flush.
func TestPollersAreWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	const flushEvery, period = 10 * time.Second, 5 * time.Second
	written, count := last{}, map[string]int{}
	d := NewDevices(written, nil, time.Now)
	start := time.Unix(0, 0)
	for now := start; now.Before(start.Add(time.Hour)); now = now.Add(period) {
		for i := range 100 {
			d.Mark(fmt.Sprint("polls-", i), store.Seen{At: now})
		}
		d.Mark("told", store.Seen{At: now, Reach: store.ReachPush})
		if now.Sub(start)%flushEvery != 0 {
			continue
		}
		clear(written)
		if err := d.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for device := range written {
			count[device]++
		}
	}
	for device, n := range count {
		switch most := int(time.Hour / (rounds * flushEvery)); {
		case device == "told" && n != int(time.Hour/flushEvery):
			t.Errorf("%s was written %d times", device, n)
		case device != "told" && (n < most-1 || n > most+1):
			t.Errorf("%s was written %d times, want %d", device, n, most)
		}
	}
	if len(count) != 101 {
		t.Errorf("%d devices were written", len(count))
	}
}

// A device that waits for a flush is written with its latest time and reach.
func TestALaterPollIsWritten(t *testing.T) {
	t.Parallel()
	written := last{}
	d := NewDevices(written, nil, time.Now)
	d.Mark("a", store.Seen{At: time.Unix(1, 0)})
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.MarkReach("a", store.Seen{At: time.Unix(2, 0), Reach: store.ReachPush})
	d.Mark("a", store.Seen{At: time.Unix(3, 0)})
	d.Mark("b", store.Seen{At: time.Unix(3, 0)})
	d.Mark("b", store.Seen{At: time.Unix(4, 0)})
	if err := d.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := last{"a": {At: time.Unix(3, 0)}, "b": {At: time.Unix(4, 0)}}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Error(diff)
	}
	d.MarkReach("b", store.Seen{At: time.Unix(5, 0)})
	if err := d.Flush(t.Context()); err != nil || !written["b"].At.Equal(time.Unix(5, 0)) {
		t.Errorf("%v, %v: of one that can no longer be told that is written at once", written["b"], err)
	}
}

// slowLedger calls before at the start of each write, and records the written values.
type slowLedger struct {
	last
	before func()
}

func (l slowLedger) TouchDevices(ctx context.Context, seen map[string]store.Seen) error {
	l.before()
	return l.last.TouchDevices(ctx, seen)
}

// A report is handled while the reach of an older report waits for a flush, or is being written. The report
// read the ledger before that write, and found its own reach there. The next flush still writes the reach of
// the later report.
func TestALaterWayToBeToldIsWrittenSoon(t *testing.T) {
	t.Parallel()
	older, later := store.Seen{At: time.Unix(2, 0)}, store.Seen{At: time.Unix(3, 0), Reach: store.ReachPush}
	for name, during := range map[string]bool{"before the flush": false, "during the flush": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d *Devices
			var once sync.Once
			reports := func() { once.Do(func() { d.Mark("a", later) }) }
			written := slowLedger{last{}, func() {
				if during {
					reports()
				}
			}}
			d = NewDevices(written, nil, time.Now)
			d.MarkReach("a", older)
			if !during {
				reports()
			}
			for range 2 {
				if err := d.FlushReached(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := written.last["a"]; got != later {
				t.Errorf("written %+v, want %+v", got, later)
			}
			clear(written.last)
			d.Mark("a", later)
			if err := d.FlushReached(t.Context()); err != nil || len(written.last) > 0 {
				t.Errorf("%v, %v: the ledger knows it by now", written.last, err)
			}
		})
	}
}

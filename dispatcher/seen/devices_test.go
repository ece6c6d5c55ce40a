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

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// sizeRecorder is a ledger that records how many devices each call writes. The call number failAt fails.
type sizeRecorder struct {
	sizes  []int
	failAt int
}

func (s *sizeRecorder) TouchDevices(_ context.Context, seen map[string]store.LastReport) error {
	s.sizes = append(s.sizes, len(seen))
	if len(s.sizes) == s.failAt {
		return errors.New("down for the test")
	}
	return nil
}

func (*sizeRecorder) RecordTokenUses(context.Context, []store.TokenUse) error { return nil }

// TestLastSeenIsWrittenInParts checks a fleet whose devices all report at once. Their last-seen times are written
// in several statements. A single statement would lock all devices, or would exceed its timeout.
func TestLastSeenIsWrittenInParts(t *testing.T) {
	t.Parallel()
	ledger := &sizeRecorder{failAt: 2}
	d := NewDevices(ledger, nil, time.Now)
	for i := range 2*maxDevicesPerWrite + 1 {
		d.Record(fmt.Sprint(i), store.LastReport{At: time.Unix(int64(i), 0)})
	}
	if err := d.Flush(t.Context()); err == nil {
		t.Error("a failure that is not told")
	}
	for range 2 { // a written part is not written again
		must.Succeed(t, d.Flush(t.Context()))
	}
	if want := []int{maxDevicesPerWrite, maxDevicesPerWrite, maxDevicesPerWrite, 1}; !slices.Equal(ledger.sizes, want) {
		t.Errorf("parts %v, want %v: the second failed", ledger.sizes, want)
	}
}

// fakeRecentList is a list of recent devices that records what it receives. It fails while down is true.
type fakeRecentList struct {
	added [][]Sighting
	down  bool
}

func (l *fakeRecentList) Add(_ context.Context, seen []Sighting) error {
	if l.down {
		return ErrUnavailable
	}
	l.added = append(l.added, seen)
	return nil
}

// TestTheListIsToldOfTheNewest checks that the list of recent devices gets the newest reports, also after an outage
// of Redis, and not more reports than it keeps.
func TestTheListIsToldOfTheNewest(t *testing.T) {
	t.Parallel()
	list := &fakeRecentList{down: true}
	d := NewDevices(&sizeRecorder{}, list, time.Now)
	d.Record("old", store.LastReport{At: time.Unix(1, 0)})
	d.Record("both", store.LastReport{At: time.Unix(2, 0)})
	for range 2 {
		if err := d.FlushRecent(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
	}
	list.down = false
	d.Record("both", store.LastReport{At: time.Unix(4, 0)})
	d.Record("new", store.LastReport{At: time.Unix(3, 0)})
	must.Succeed(t, d.FlushRecent(t.Context()))
	want := []Sighting{{Device: "both", At: time.Unix(4, 0)}, {Device: "new", At: time.Unix(3, 0)}, {Device: "old", At: time.Unix(1, 0)}}
	if diff := cmp.Diff(want, list.added[0]); diff != "" {
		t.Error(diff)
	}
	list.added = nil
	for i := range 2 * MaxRecent {
		d.Record(fmt.Sprint(i), store.LastReport{At: time.Unix(int64(i), 0)})
	}
	must.Succeed(t, d.FlushRecent(t.Context()))
	if got := list.added[0]; len(got) != MaxRecent || got[0].Device != "1999" || got[MaxRecent-1].Device != "1000" {
		t.Errorf("told of %d", len(got))
	}
}

// lastWrites records for each device the value that was written last.
type lastWrites map[string]store.LastReport

func (l lastWrites) TouchDevices(_ context.Context, seen map[string]store.LastReport) error {
	maps.Copy(l, seen)
	return nil
}

func (lastWrites) RecordTokenUses(context.Context, []store.TokenUse) error { return nil }

// A device that polls must be written to the ledger about once a minute, so that its stored last-seen time has the precision
// store.SeenPrecision. A device that can be woken must be written in each flush.
func TestPollersAreWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	const flushEvery, period = 10 * time.Second, 5 * time.Second
	written, count := lastWrites{}, map[string]int{}
	d := NewDevices(written, nil, time.Now)
	start := time.Unix(0, 0)
	for now := start; now.Before(start.Add(time.Hour)); now = now.Add(period) {
		for i := range 100 {
			d.Record(fmt.Sprint("polls-", i), store.LastReport{At: now})
		}
		d.Record("told", store.LastReport{At: now, Reach: store.ReachPush})
		if now.Sub(start)%flushEvery != 0 {
			continue
		}
		clear(written)
		must.Succeed(t, d.Flush(t.Context()))
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

// A device reports again while its earlier report waits for a flush. The flush must write the latest time and reach.
func TestALaterPollIsWritten(t *testing.T) {
	t.Parallel()
	written := lastWrites{}
	d := NewDevices(written, nil, time.Now)
	d.Record("a", store.LastReport{At: time.Unix(1, 0)})
	must.Succeed(t, d.Flush(t.Context()))
	d.RecordReach("a", store.LastReport{At: time.Unix(2, 0), Reach: store.ReachPush})
	d.Record("a", store.LastReport{At: time.Unix(3, 0)})
	d.Record("b", store.LastReport{At: time.Unix(3, 0)})
	d.Record("b", store.LastReport{At: time.Unix(4, 0)})
	must.Succeed(t, d.Flush(t.Context()))
	want := lastWrites{"a": {At: time.Unix(3, 0)}, "b": {At: time.Unix(4, 0)}}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Error(diff)
	}
	d.RecordReach("b", store.LastReport{At: time.Unix(5, 0)})
	if err := d.Flush(t.Context()); err != nil || !written["b"].At.Equal(time.Unix(5, 0)) {
		t.Errorf("%v, %v: of one that can no longer be told that is written at once", written["b"], err)
	}
}

// A device is asked to report only after some minutes. It must be written with the next flush, even if it was written lately: otherwise it
// would seem to have failed.
func TestAnOrderedSilenceIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	written := lastWrites{}
	d := NewDevices(written, nil, time.Now)
	d.Record("a", store.LastReport{At: time.Unix(1, 0)})
	must.Succeed(t, d.Flush(t.Context()))
	sleeps := store.LastReport{At: time.Unix(2, 0), QuietUntil: time.Unix(302, 0)}
	d.Record("a", sleeps)
	if err := d.Flush(t.Context()); err != nil || written["a"] != sleeps {
		t.Errorf("%v, %v, want %v", written["a"], err, sleeps)
	}
}

// slowLedger is a ledger that calls beforeWrite at the start of each write, and records the written values.
type slowLedger struct {
	lastWrites
	beforeWrite func()
}

func (l slowLedger) TouchDevices(ctx context.Context, seen map[string]store.LastReport) error {
	l.beforeWrite()
	return l.lastWrites.TouchDevices(ctx, seen)
}

// A device reports while the older reach (how it can be woken) of an earlier report waits for a flush or is being written. The new report
// read the ledger before that write, so the ledger already seemed to have the new reach. The next flush must still write the reach of the
// new report.
func TestALaterWayToBeToldIsWrittenSoon(t *testing.T) {
	t.Parallel()
	older, later := store.LastReport{At: time.Unix(2, 0)}, store.LastReport{At: time.Unix(3, 0), Reach: store.ReachPush}
	for name, during := range map[string]bool{"before the flush": false, "during the flush": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d *Devices
			var once sync.Once
			reports := func() { once.Do(func() { d.Record("a", later) }) }
			written := slowLedger{lastWrites{}, func() {
				if during {
					reports()
				}
			}}
			d = NewDevices(written, nil, time.Now)
			d.RecordReach("a", older)
			if !during {
				reports()
			}
			for range 2 {
				must.Succeed(t, d.FlushReached(t.Context()))
			}
			if got := written.lastWrites["a"]; got != later {
				t.Errorf("written %+v, want %+v", got, later)
			}
			clear(written.lastWrites)
			d.Record("a", later)
			if err := d.FlushReached(t.Context()); err != nil || len(written.lastWrites) > 0 {
				t.Errorf("%v, %v: the ledger knows it by now", written.lastWrites, err)
			}
		})
	}
}

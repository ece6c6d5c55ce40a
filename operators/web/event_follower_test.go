package web

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// lateCommitLog is an event log in which some events are not committed yet.
type lateCommitLog struct {
	lastID  int64 // the highest assigned id
	missing map[int64]bool
}

func (l *lateCommitLog) Events(_ context.Context, f store.EventFilter) (list []store.Event, err error) {
	for id := f.After + 1; id <= l.lastID && len(list) < f.Limit; id++ {
		if !l.missing[id] {
			list = append(list, store.Event{ID: id, Kind: "task.granted", Pool: "p"})
		}
	}
	return list, nil
}

func (l *lateCommitLog) ReadEventPosition(context.Context, int64) (store.EventPosition, error) {
	return store.EventPosition{Last: l.lastID}, nil
}

func (l *lateCommitLog) EventsComplete(_ context.Context, m store.EventPosition) (bool, error) {
	for id := range l.missing {
		if id <= m.Last {
			return false, nil
		}
	}
	return true, nil
}

// TestTheFollowerMissesNoEvent checks that each event of the log is returned once, however late it is committed and
// however many later events are committed before it.
func TestTheFollowerMissesNoEvent(t *testing.T) {
	t.Parallel()
	log := &lateCommitLog{lastID: 5, missing: map[int64]bool{}}
	n := &eventFollower{log: log}
	told := func() (ids []int64) {
		t.Helper()
		events, _, err := n.readNewEvents(t.Context(), true)
		must.Succeed(t, err)
		for _, e := range events {
			ids = append(ids, e.ID)
		}
		return ids
	}
	told() // the first read returns no events
	for _, step := range []struct {
		given   int64
		missing []int64
		want    []int64
	}{
		{5, nil, nil},
		{8, []int64{7}, []int64{6, 8}},
		{10, []int64{7}, []int64{9, 10}},
		{10, []int64{7, 12}, nil},
		{13, []int64{12}, []int64{7, 11, 13}},
		{13, nil, []int64{12}},
		{13, nil, nil},
		{2513, nil, nil},
	} {
		log.lastID, log.missing = step.given, map[int64]bool{}
		for _, id := range step.missing {
			log.missing[id] = true
		}
		got := told()
		if step.given == 2513 {
			if len(got) != 2500 {
				t.Errorf("%d events of 2500", len(got))
			}
			continue
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("of %d without %v: %v, want %v", step.given, step.missing, got, step.want)
		}
	}
	for range 3 {
		told()
	}
	if len(n.returned) > 0 {
		t.Errorf("%d ids are remembered when all has settled", len(n.returned))
	}
}

// TestHistoryForgets checks how long counts are kept: grants and reaps for a minute, denials for an hour. If nothing happens in a pool
// any more, all its counts are deleted.
func TestHistoryForgets(t *testing.T) {
	t.Parallel()
	h := newRecentPoolCounts()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 2000 {
		now = now.Add(countEvery)
		h.addSlotChanges([]store.SlotChanges{{Pool: "p", Granted: 1, Lapsed: 1}})
		h.addTally("p", meters.Tally{Denied: 1})
		h.endInterval(now)
	}
	perMinute := int64(time.Minute / countEvery)
	if lately := h.recentCounts("p"); lately != (poolCounts{Grants: perMinute, Reaps: perMinute, Denied: perMinute}) || len(h.intervals["p"]) > 2*int(perMinute) {
		t.Errorf("in the last minute: %+v; %d intervals", lately, len(h.intervals["p"]))
	}
	if d := h.recentDenials("p"); len(d.byMinute) < 60 || len(d.byMinute) > 61 || d.byMinute[minuteOf(now.Add(-30*time.Minute))] != perMinute {
		t.Errorf("denials: %v", d)
	}
	h.endInterval(now.Add(time.Minute))
	if lately := h.recentCounts("p"); lately != (poolCounts{}) || len(h.intervals) > 0 {
		t.Errorf("a minute later: %+v", lately)
	}
	if h.endInterval(now.Add(62 * time.Minute)); len(h.denied) > 0 {
		t.Errorf("an hour later: %v", h.denied)
	}
}

func TestBriefDurations(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		20 * time.Millisecond: "20 ms", 1500 * time.Millisecond: "1.5 s", 90 * time.Second: "1 min 30 s", 2 * time.Hour: "2 h", 50 * time.Hour: "2 d 2 h", -time.Second: "-1 s",
	} {
		if got := durationText(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

package api

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestBatchState(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	earlier, later := now.Add(-time.Second), now.Add(time.Second)
	pending := map[store.TaskState]int64{store.Pending: 1}
	dispatched := map[store.TaskState]int64{store.Dispatched: 1, store.Succeeded: 3}
	ended := map[store.TaskState]int64{store.Succeeded: 1, store.Failed: 1, store.TimedOut: 1, store.Expired: 1, store.Cancelled: 1}
	for name, test := range map[string]struct {
		batch store.Batch
		want  string
	}{
		"pending":                {store.Batch{Counts: pending}, "running"},
		"dispatched":             {store.Batch{Counts: dispatched}, "running"},
		"begins later":           {store.Batch{Counts: pending, NotBefore: &later}, "scheduled"},
		"begins now":             {store.Batch{Counts: pending, NotBefore: &now}, "running"},
		"has begun":              {store.Batch{Counts: pending, NotBefore: &earlier}, "running"},
		"paused":                 {store.Batch{Counts: dispatched, Paused: true}, "paused"},
		"paused and begun later": {store.Batch{Counts: pending, Paused: true, NotBefore: &later}, "paused"},
		"all ended":              {store.Batch{Counts: ended}, "finished"},
		"ended while paused":     {store.Batch{Counts: ended, Paused: true}, "finished"},
		"empty":                  {store.Batch{}, "finished"},
		"cancelled, one runs":    {store.Batch{Counts: dispatched, CancelledAt: &earlier, Paused: true}, "cancelling"},
		"cancelled":              {store.Batch{Counts: ended, CancelledAt: &earlier}, "cancelled"},
	} {
		test.batch.ReadAt = now
		if got := batchState(test.batch); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestTimestampsAreUTCWithMilliseconds(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 5, 6, 789_999_999, time.FixedZone("", 8*3600))
	got, err := stamp(at).MarshalJSON()
	if want := `"2026-03-01T04:05:06.789Z"`; err != nil || string(got) != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
	got, _ = stamp(time.Date(2026, 3, 1, 4, 5, 6, 0, time.UTC)).MarshalJSON()
	if want := `"2026-03-01T04:05:06.000Z"`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

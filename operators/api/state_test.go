package api

import (
	"strconv"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestABatchsStateFollowsItsTasks(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	earlier, later := now.Add(-time.Second), now.Add(time.Second)
	pending := map[store.TaskState]int64{store.Pending: 1}
	dispatched := map[store.TaskState]int64{store.Dispatched: 1, store.Succeeded: 3}
	ended := map[store.TaskState]int64{store.Succeeded: 1, store.Failed: 1, store.TimedOut: 1, store.Expired: 1, store.Cancelled: 1, store.Suppressed: 1}
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

func TestTheETAFollowsTheRate(t *testing.T) {
	t.Parallel()
	created := time.Unix(1_800_000_000, 0)
	counts := map[store.TaskState]int64{store.Pending: 20, store.Dispatched: 10, store.Succeeded: 70}
	paused := true
	for name, test := range map[string]struct {
		batch store.Batch
		age   time.Duration
		rate  string
		eta   time.Duration // after ReadAt; 0 means unknown
	}{
		"five minutes":      {store.Batch{Recent: 50}, time.Hour, "10", 3 * time.Minute},
		"younger":           {store.Batch{Recent: 50}, 100 * time.Second, "30", time.Minute},
		"very young":        {store.Batch{Recent: 5}, time.Second, "30", time.Minute},
		"nothing done":      {store.Batch{}, time.Hour, "0", 0},
		"hardly anything":   {store.Batch{Recent: 1, Total: 1 << 40}, time.Hour, "0.2", 0},
		"paused":            {store.Batch{Recent: 50, Paused: paused}, time.Hour, "10", 0},
		"cancelling":        {store.Batch{Recent: 50, CancelledAt: &created}, time.Hour, "10", 0},
		"began after it":    {store.Batch{Recent: 50, NotBefore: timeAfter(created, 59*time.Minute)}, time.Hour, "50", 36 * time.Second},
		"has not begun":     {store.Batch{NotBefore: timeAfter(created, 2*time.Hour)}, time.Hour, "null", 0},
		"nothing left open": {store.Batch{Recent: 50, Counts: map[store.TaskState]int64{store.Succeeded: 1}}, time.Hour, "10", 0},
	} {
		b := test.batch
		b.CreatedAt, b.ReadAt = created, created.Add(test.age)
		b.PoolSettings.Capacity = 60
		if b.Counts == nil {
			b.Counts = counts
		}
		if b.Total > 0 {
			b.Counts = map[store.TaskState]int64{store.Pending: b.Total}
		}
		shown, wantETA := toAPIBatch(b), ""
		if test.eta > 0 {
			wantETA = b.ReadAt.Add(test.eta).String()
		}
		rate, eta := "null", ""
		if shown.RatePerMinute != nil {
			rate = strconv.FormatFloat(*shown.RatePerMinute, 'g', 4, 64)
		}
		if shown.ETA != nil {
			eta = shown.ETA.String()
		}
		if rate != test.rate || eta != wantETA {
			t.Errorf("%s: rate %s, eta %q; want %s and %q", name, rate, eta, test.rate, wantETA)
		}
	}
}

func timeAfter(from time.Time, later time.Duration) *time.Time {
	t := from.Add(later)
	return &t
}

func TestTimestampsAreUTCWithMilliseconds(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 5, 6, 789_999_999, time.FixedZone("", 8*3600))
	got, err := apiTime(at).MarshalJSON()
	if want := `"2026-03-01T04:05:06.789Z"`; err != nil || string(got) != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
	got, _ = apiTime(time.Date(2026, 3, 1, 4, 5, 6, 0, time.UTC)).MarshalJSON()
	if want := `"2026-03-01T04:05:06.000Z"`; string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

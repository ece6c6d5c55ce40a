package dispatcher

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// A device is granted a task. The time of its next report must follow the usual hold time of tasks of this kind, or of the pool if no task
// of this kind has ended yet.
func TestResultsAreExpectedByKind(t *testing.T) {
	t.Parallel()
	d := New(Config{Jitter: func() float64 { return 0.5 }})
	expect := func(kind string, want time.Duration) {
		t.Helper()
		want = want * 85 / 100
		if got := d.delayAfterGrant("p", kind, time.Hour); got < want-time.Millisecond || got > want+time.Millisecond {
			t.Errorf("%s expected after %s, want %s", kind, got, want)
		}
	}
	expect("long", 5*time.Second)
	d.Waiters.Pools.RecordHoldTime("p", "long", 10*time.Minute)
	expect("long", 10*time.Minute)
	expect("short", 10*time.Minute) // no sample of this kind yet: the mean of the pool is used
	d.Waiters.Pools.RecordHoldTime("p", "short", 10*time.Second)
	expect("short", 10*time.Second)
	expect("long", 10*time.Minute)
}

// A task takes far longer than is usual in its pool. The intervals at which its device is asked to report must depend on the lease: the
// device must not be asked every second.
func TestALongTaskAmongShortOnesIsAskedRarely(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for _, test := range []struct {
		mean, works, lease time.Duration
		most               int // maximum number of reports until the task is done, including the one with its result
	}{
		{time.Second, 12 * time.Second, 300 * time.Second, 3},
		{time.Second, 100 * time.Second, 300 * time.Second, 12},
		{100 * time.Millisecond, 12 * time.Second, 300 * time.Second, 3},
		{20 * time.Second, 30 * time.Second, 300 * time.Second, 6}, // a task of usual length
		{time.Second, 5 * time.Second, 9 * time.Second, 5},         // a short lease
	} {
		d := New(Config{Jitter: func() float64 { return 0.5 }})
		d.Waiters.Pools.RecordHoldTime("p", "k", test.mean)
		g, asked := store.Grant{Pool: "p", Kind: "k", GrantedAt: start, LeaseLength: test.lease}, 1
		at := d.delayAfterGrant("p", "k", test.lease)
		for ; at < test.works; asked++ {
			at += d.delayWhileRunning(g, start.Add(at))
		}
		if asked > test.most || at > test.works+max(test.works/4, test.lease/30, decision.MinReportDelay) {
			t.Errorf("%s of work among %s, lease %s: asked %d times, the last time after %s", test.works, test.mean, test.lease, asked, at)
		}
	}
}

// A device reports only at the times that the replies name. It must not hold its slot much longer than it works, even if the mean hold time
// was wrong at first.
func TestADeviceThatReportsOnlyWhenToldHoldsItsSlotNotMuchLonger(t *testing.T) {
	t.Parallel()
	draw := rand.New(rand.NewPCG(1, 2))
	d := New(Config{Jitter: draw.Float64})
	d.Waiters.Pools.RecordHoldTime("p", "k", 10*time.Minute) // the first task took long
	const devices, last = 2000, 500
	var worked, held time.Duration
	start := time.Now()
	for i := range devices {
		works := time.Duration((10 + 20*draw.Float64()) * float64(time.Second))
		g := store.Grant{Pool: "p", Kind: "k", GrantedAt: start, LeaseLength: 2 * time.Hour}
		holds := d.delayAfterGrant("p", "k", 2*time.Hour)
		for holds < works {
			holds += d.delayWhileRunning(g, start.Add(holds))
		}
		d.Waiters.Pools.RecordHoldTime("p", "k", holds)
		if i >= devices-last {
			worked, held = worked+works, held+holds
		}
	}
	if share := float64(held) / float64(worked); share > 1.25 {
		t.Errorf("slots are held %.2f times as long as devices work", share)
	} else {
		t.Logf("slots are held %.2f times as long as devices work", share)
	}
}

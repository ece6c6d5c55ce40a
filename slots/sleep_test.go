package slots_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// TestWaitersFarBackSleepLonger checks the time after which a waiter is to report again. For a device far back in its batch, it must be a
// tenth of the device's expected wait, at most the longest sleep of the pool. For all other devices, it must be at most three periods, or
// eight if they can be notified.
func TestWaitersFarBackSleepLonger(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		pool, period := s.restorePool(t, 1), 30*time.Second
		pace := slots.Pace{MeanHold: 100 * time.Second, MinWait: time.Second, ReportPeriod: period, OfferTTL: 3 * time.Second, LongestSleep: 10 * time.Minute}
		ask := func(task, batch int64, reach slots.Reach, pace slots.Pace) time.Duration {
			t.Helper()
			r := newRequest(fmt.Sprint("d", task), slots.Want{Batch: batch, Task: task, Lease: fmt.Sprint(task), TTL: time.Hour})
			r.Reach, r.Chance = reach, 1
			got, _, err := s.Acquire(t.Context(), pool, pace, []slots.Request{r})
			must.Succeed(t, err)
			return got[0].AskAfter
		}
		for task := range int64(100) {
			ask(task+1, 1, slots.ReachNone, pace) // the first device gets the slot; rank r of the batch has task r+1
		}
		short := pace
		short.LongestSleep = 0
		for _, c := range []struct {
			task, batch int64
			reach       slots.Reach
			pace        slots.Pace
			want        time.Duration
		}{
			{10, 1, slots.ReachNone, pace, 3 * period},
			{31, 1, slots.ReachNone, pace, 300 * time.Second},
			{91, 1, slots.ReachNone, pace, 600 * time.Second},
			{91, 1, slots.ReachNone, short, 3 * period},
			{21, 1, slots.ReachPush, pace, 8 * period},
			{51, 1, slots.ReachPush, pace, 500 * time.Second},
			{51, 1, slots.ReachPush, short, 8 * period},
			{200, 2, slots.ReachNone, pace, 3 * period}, // the only device of its batch, although many devices wait
		} {
			if got := ask(c.task, c.batch, c.reach, c.pace); got != c.want {
				t.Errorf("task %d of batch %d, reach %d, longest sleep %s: again after %s, want %s", c.task, c.batch, c.reach, c.pace.LongestSleep, got, c.want)
			}
			if c.reach != slots.ReachNone {
				continue // Refresh counts only the waiters of the same class, which have the same reach
			}
			again, err := s.Refresh(t.Context(), pool, c.pace, []slots.WaiterRefresh{{Device: fmt.Sprint("d", c.task), Chance: 1}})
			if err != nil || again[0] != c.want {
				t.Errorf("task %d of batch %d, longest sleep %s: refreshed for %s, %v, want %s", c.task, c.batch, c.pace.LongestSleep, again, err, c.want)
			}
		}
	})
}

// TestLongSleepsLeaveNoSlotIdle checks that sleeping waiters leave no slot idle when the capacity is raised tenfold, when the batches
// before them are cancelled, or when nine of ten devices fail. It compares the slots that are held after such a change with those of the
// same fleet without long sleeps.
func TestLongSleepsLeaveNoSlotIdle(t *testing.T) {
	t.Parallel()
	const capacity, hold = 10, 100 * time.Second
	each, horizon, least := 600, 10*time.Minute, 0.99 // devices of each batch; the last tasks start after the horizon
	if testing.Short() {
		each, horizon, least = 300, 5*time.Minute, 0.97 // each of the few tasks has more weight
	}
	changes := map[string]func(f *simulatedFleet, first, last []*simulatedDevice){
		"nothing":             func(*simulatedFleet, []*simulatedDevice, []*simulatedDevice) {},
		"ten times the slots": func(f *simulatedFleet, _, _ []*simulatedDevice) { f.resize(10*capacity, 2) },
		"the first batch is cancelled": func(f *simulatedFleet, first, _ []*simulatedDevice) {
			silence(first)
			for range 5 {
				_, err := f.OfferSlots(f.t.Context(), f.pool, f.pace, []slots.Update{{Kind: slots.BatchLeft, Batch: 1}})
				must.Succeed(f.t, err)
			}
		},
		"nine of ten fail": func(_ *simulatedFleet, first, last []*simulatedDevice) {
			for _, all := range [][]*simulatedDevice{first, last} {
				for i := range all {
					if i%10 != 0 {
						silence(all[i : i+1])
					}
				}
			}
		},
	}
	if testing.Short() {
		delete(changes, "nothing") // the other fleets run without a change first
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(longest time.Duration) (held, reports float64) {
				f := newFleet(t, capacity, hold)
				f.pool += longest.String()
				f.restore(t, f.pool, slots.Config{Capacity: capacity, Version: 1})
				f.pace.LongestSleep = longest
				first, last := f.addDevices(each, 1, slots.ReachNone, 0, 30*time.Second), f.addDevices(each, 2, slots.ReachNone, 0, 30*time.Second)
				f.runUntil(10*time.Minute, func() bool { return false })
				change(f, first, last)
				began, before := f.now, f.requestCount
				f.runUntil(began+horizon, func() bool { return false })
				return f.meanHeld(began, horizon), float64(f.requestCount-before) / horizon.Seconds()
			}
			short, shortRate := run(0)
			long, longRate := run(10 * time.Minute)
			t.Logf("%.2f slots held at %.2f reports a second, without long sleeps %.2f at %.2f", long, longRate, short, shortRate)
			if long < least*short {
				t.Errorf("%.2f slots held, want at least %.2f of %.2f", long, least, short)
			}
		})
	}
}

// meanHeld returns the mean number of held slots in the period that begins at the time from and has this length.
func (f *simulatedFleet) meanHeld(from, length time.Duration) float64 {
	var sum time.Duration
	for i, at := range f.grantsAt {
		sum += max(min(f.endsAt[i], from+length)-max(at, from), 0)
	}
	return sum.Seconds() / length.Seconds()
}

// silence makes devices stop reporting.
func silence(devices []*simulatedDevice) {
	for _, m := range devices {
		m.done = true
	}
}

func (f *simulatedFleet) resize(capacity int, version int64) {
	f.t.Helper()
	_, err := f.Configure(f.t.Context(), f.pool, slots.Config{Capacity: capacity, Version: version})
	must.Succeed(f.t, err)
}

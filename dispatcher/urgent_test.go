package dispatcher_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

func isUrgent(b *store.Batch) { b.Lane = store.LaneUrgent }

func heavy(b *store.Batch) { b.Weight = 1000 }

// named returns n names with a prefix.
func named(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return names
}

// fleet is a full pool of 60 slots. A batch of weight 1000 has thousands of tasks, and its devices wait in
// the queue.
type fleet struct {
	*bench
	*wakes

	holds []devices.Task // tasks of the holders, oldest first
	of    []string       // holder of each task
	told  int            // number of wake-ups that were followed
	heavy int64
}

const urgentShare = 6 // default share of 60 slots

// fleets runs a test on the embedded stores and on real servers. The devices in sleeps have reported before,
// and have no task.
func fleets(t *testing.T, test func(f *fleet), sleeps ...string) {
	t.Helper()
	for name, backend := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *bench{"embedded": embedded, "servers": onServers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wakes{}
			f := &fleet{bench: backend(t, pushing(w), unhurried), wakes: w}
			f.pool("a", 60, 5*minute)
			f.reconcile()
			names, tasks := named("d", 150), []string(nil)
			for range 20 {
				tasks = append(tasks, names...)
			}
			f.registered(slices.Concat(names, sleeps)...)
			f.heavy = f.batch("a", heavy, tasks...)
			for _, device := range sleeps {
				f.expectPushed(device, devices.ReasonNone)
			}
			for i, device := range names {
				if i < 60 {
					f.holds, f.of = append(f.holds, *f.expectPushed(device, devices.ReasonGranted).Task), append(f.of, device)
				} else {
					f.expectPushed(device, devices.ReasonFull)
				}
			}
			f.must(f.Seen.Flush(f.ctx))
			test(f)
		})
	}
}

// handOn ends the task of the oldest holder, and lets the device that gets the slot start. On a busy machine
// a device may report after its offer lapsed; then it is refused, and the slot was offered to the next
// device.
func (f *fleet) handOn() (device string) {
	f.t.Helper()
	f.pushed(f.of[0], result(f.holds[0], "succeeded", ""))
	for {
		f.eventually("waking", func() bool { return len(f.woken()) > f.told })
		device = f.woken()[f.told]
		f.told++
		if reply := f.pushed(device, `{"id":"p"}`); reply.Task != nil {
			f.holds, f.of = append(f.holds[1:], *reply.Task), append(f.of[1:], device)
			return device
		}
	}
}

// inLane returns the number of holders of the urgent batch.
func (f *fleet) inLane() (n int) {
	for _, device := range f.of {
		if strings.HasPrefix(device, "u-") {
			n++
		}
	}
	return n
}

// A single urgent task gets the next slot that becomes free, before thousands of tasks of a batch of weight
// 1000. Its device sleeps, or waits with another task.
func TestAnUrgentTaskGetsTheNextSlot(t *testing.T) {
	t.Parallel()
	for _, device := range []string{"u-000", "d-149"} {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			fleets(t, func(f *fleet) {
				batch := f.batch("a", isUrgent, device)
				f.Waiters.Filler.Fill("a") // as the API does
				f.eventually("the queue to know of it", func() bool { return f.laneWaits() == 1 })
				if got := f.handOn(); got != device {
					t.Fatalf("the slot was offered to %s, want %s", got, device)
				}
				if got := f.task(f.holds[59].ID); got.Batch != batch {
					t.Errorf("it was given task %+v", got)
				}
				if got := f.handOn(); got == device || f.inLane() > 1 {
					t.Errorf("then to %s", got)
				}
			}, "u-000")
		})
	}
}

// The passes find an urgent task that may only start later, without any notification.
func TestAnUrgentTaskThatMayStartLaterGetsTheNextSlot(t *testing.T) {
	t.Parallel()
	fleets(t, func(f *fleet) {
		soon := time.Now().Add(time.Second)
		f.batch("a", func(b *store.Batch) { isUrgent(b); b.NotBefore = &soon }, "u-000")
		f.Waiters.Filler.Fill("a") // as the API does
		f.eventually("the queue to know of it", func() bool {
			f.must(f.Waiters.Filler.FillAll(f.ctx))
			return f.laneWaits() == 1
		})
		if got := f.handOn(); got != "u-000" {
			t.Errorf("the slot was offered to %s", got)
		}
	}, "u-000")
}

func (f *fleet) laneWaits() int {
	standing, err := f.semaphore.Standing(f.ctx, "a", "nobody", []slots.Waiter{{Batch: 99, Task: 99}})
	f.must(err)
	return standing.Lane.Waiting
}

// An urgent batch of 100 tasks gets its share at once, and never more while other batches wait. After that,
// free slots are shared by weight. No running task is ended.
func TestUrgentBatchesHaveTheirShareAndNoMore(t *testing.T) {
	t.Parallel()
	urgent := named("u", 100)
	fleets(t, func(f *fleet) {
		f.batch("a", isUrgent, urgent...)
		f.Waiters.Filler.Fill("a")
		f.eventually("the queue to know of them", func() bool { return f.laneWaits() == 100 })
		for n := range 150 {
			f.handOn()
			if got := f.inLane(); got > urgentShare || n < urgentShare && got != n+1 {
				t.Fatalf("after %d slots %d are urgent, want at most %d", n+1, got, urgentShare)
			}
		}
		if got := f.inLane(); got != urgentShare {
			t.Errorf("%d urgent in the end, want %d", got, urgentShare)
		}
		f.expectHeld(60)
	}, urgent...)
}

// A device tries its urgent task first, before an older task of the same pool or of another pool.
func TestADeviceTriesItsUrgentTaskFirst(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"a", "b"} {
		t.Run(pool, func(t *testing.T) {
			t.Parallel()
			forBackends(t, func(b *bench) {
				b.pool("a", 1, minute)
				b.pool("b", 1, minute)
				b.reconcile()
				b.batch("a", heavy, "d")
				urgent := b.batch(pool, isUrgent, "d")
				if got := b.task(b.granted("d").ID); got.Batch != urgent {
					t.Errorf("given task %+v first", got)
				}
			})
		})
	}
}

// `why` explains the lane both for urgent tasks and for the tasks behind them.
func TestWhySpeaksOfTheLane(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 11, minute)
		b.reconcile()
		holders, waiters := named("h", 11), named("w", 3)
		b.batch("a", heavy, slices.Concat(holders, waiters)...)
		b.batch("a", isUrgent, "u-0", "u-1", "u-2")
		held := map[string]devices.Task{}
		for _, device := range holders {
			held[device] = b.granted(device)
		}
		for _, device := range append(waiters, "u-0") {
			b.expectReason(device, `{"id":"x"}`, devices.ReasonFull)
		}
		full := []decision.Code{decision.CodeFull}
		b.expectWhy(b.tasksOf("u-0")[0], full, "urgent: it goes before 3 others", "position 1 of")
		b.expectWhy(b.tasksOf("w-000")[0], full, "an urgent batch goes first")

		for i, device := range []string{"u-0", "u-1"} { // the lane has two slots
			b.ended(holders[i], held[holders[i]], "succeeded", "", devices.OutcomeRecorded)
			b.granted(device)
		}
		b.expectReason("u-2", `{"id":"z"}`, devices.ReasonFull)
		e := b.expectWhy(b.tasksOf("u-2")[0], full, "its lane's share of the pool (2 of 11) is in use: it waits by its weight")
		if strings.Contains(fmt.Sprint(e), "goes before") {
			t.Errorf("%+v", e)
		}
		if e := b.why(b.tasksOf("w-000")[0]); strings.Contains(fmt.Sprint(e), "an urgent batch goes first") {
			t.Errorf("others: %+v", e)
		}
	}, unhurried, func(c *dispatcher.Config) { c.Jitter = func() float64 { return 0 } })
}

// If a device has tasks in more batches than the semaphore accepts, the random choice includes all urgent
// batches.
func TestUrgentBatchesAreAmongThoseDrawn(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("a", 1, minute)
		b.reconcile()
		for range 230 {
			b.batch("a", heavy, "d")
		}
		urgent := b.batch("a", isUrgent, "d")
		for range 20 {
			b.batch("a", heavy, "d")
		}
		if got := b.task(b.granted("d").ID); got.Batch != urgent {
			t.Errorf("given task %+v first", got)
		}
	}, func(c *dispatcher.Config) { c.Jitter = func() float64 { return 0.99 } })
}

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

func makeUrgent(b *store.Batch) { b.Lane = store.LaneUrgent }

func makeHeavy(b *store.Batch) { b.Weight = 1000 }

// numberedNames returns n names with a prefix.
func numberedNames(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return names
}

// fullPool is a pool of 60 slots, all of which are held. A batch of weight 1000 has thousands of tasks in it, and
// the devices of these tasks wait in the queue.
type fullPool struct {
	*testBench
	*wakeRecorder

	heldTasks     []devices.Task // tasks of the holders, oldest first
	holders       []string       // holder of each task
	followedWakes int            // number of wake-ups to which the test has reacted
	heavyBatch    int64
}

const urgentShare = 6 // default share of the urgent lane in a pool of 60 slots

// runOnFullPools runs a test on a full pool, on real servers and, in the long suite, on the embedded stores. The
// devices in sleepers have reported before and have no task.
func runOnFullPools(t *testing.T, test func(f *fullPool), sleepers ...string) {
	t.Helper()
	backends := map[string]func(testing.TB, ...func(*dispatcher.Config)) *testBench{"embedded": newEmbeddedBench, "servers": newServerBench}
	if testing.Short() {
		delete(backends, "embedded") // it takes ten times as long, and smaller tests of the lane run on it
	}
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wakeRecorder{}
			f := &fullPool{testBench: backend(t, withWaker(w), withLongPeriod, withMinuteOffers), wakeRecorder: w}
			f.createPool("a", 60, 5*minute)
			f.reconcile()
			names, tasks := numberedNames("d", 150), []string(nil)
			for range 20 {
				tasks = append(tasks, names...)
			}
			f.registerDevices(slices.Concat(names, sleepers)...)
			f.heavyBatch = f.createBatch("a", makeHeavy, tasks...)
			for _, device := range sleepers {
				f.expectSessionReason(device, devices.ReasonNone)
			}
			for i, device := range names {
				if i < 60 {
					f.heldTasks, f.holders = append(f.heldTasks, *f.expectSessionReason(device, devices.ReasonGranted).Task), append(f.holders, device)
				} else {
					f.expectSessionReason(device, devices.ReasonFull)
				}
			}
			f.must(f.Seen.Flush(f.ctx))
			test(f)
		})
	}
}

// handOffSlot ends the task of the oldest holder, and lets the device that gets the slot start its task.
func (f *fullPool) handOffSlot() (device string) {
	f.t.Helper()
	f.reportOverSession(f.holders[0], resultReport(f.heldTasks[0], "succeeded", ""))
	f.awaitCondition("waking", func() bool { return len(f.wokenDevices()) > f.followedWakes })
	device = f.wokenDevices()[f.followedWakes]
	f.followedWakes++
	reply := f.expectSessionReason(device, devices.ReasonGranted)
	f.heldTasks, f.holders = append(f.heldTasks[1:], *reply.Task), append(f.holders[1:], device)
	return device
}

// urgentHolders returns how many slots devices with tasks of the urgent batch hold.
func (f *fullPool) urgentHolders() (n int) {
	for _, device := range f.holders {
		if strings.HasPrefix(device, "u-") {
			n++
		}
	}
	return n
}

// One urgent task is queued. It must get the next slot that becomes free, before thousands of tasks of a batch of weight 1000. The device of
// this task sleeps, or waits with another task.
func TestAnUrgentTaskGetsTheNextSlot(t *testing.T) {
	t.Parallel()
	for _, device := range []string{"u-000", "d-149"} {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			runOnFullPools(t, func(f *fullPool) {
				batch := f.createBatch("a", makeUrgent, device)
				f.Waiters.Filler.FillPool("a") // as the API does
				f.awaitCondition("the queue to know of it", func() bool { return f.laneWaiters() == 1 })
				if got := f.handOffSlot(); got != device {
					t.Fatalf("the slot was offered to %s, want %s", got, device)
				}
				if got := f.readTask(f.heldTasks[59].ID); got.Batch != batch {
					t.Errorf("it was given task %+v", got)
				}
				if got := f.handOffSlot(); got == device || f.urgentHolders() > 1 {
					t.Errorf("then to %s", got)
				}
			}, "u-000")
		})
	}
}

// An urgent task may only start at a later time. When this time has come, the passes must find the task, although nothing notifies them.
func TestAnUrgentTaskThatMayStartLaterGetsTheNextSlot(t *testing.T) {
	t.Parallel()
	runOnFullPools(t, func(f *fullPool) {
		soon := time.Now().Add(time.Second)
		f.createBatch("a", func(b *store.Batch) { makeUrgent(b); b.NotBefore = &soon }, "u-000")
		f.Waiters.Filler.FillPool("a") // as the API does
		f.awaitCondition("the queue to know of it", func() bool {
			f.must(f.Waiters.Filler.FillAllPools(f.ctx))
			return f.laneWaiters() == 1
		})
		if got := f.handOffSlot(); got != "u-000" {
			t.Errorf("the slot was offered to %s", got)
		}
	}, "u-000")
}

func (f *fullPool) laneWaiters() int {
	standing, err := f.semaphore.ReadQueuePlaces(f.ctx, "a", "nobody", []slots.Want{{Batch: 99, Task: 99}})
	f.must(err)
	return standing.Lane.Waiting
}

// An urgent batch of 100 tasks is queued. It must get its share of the slots at once, and never more while other batches wait. After that,
// free slots must be shared by weight. No running task may be ended.
func TestUrgentBatchesHaveTheirShareAndNoMore(t *testing.T) {
	t.Parallel()
	urgent := numberedNames("u", 100)
	runOnFullPools(t, func(f *fullPool) {
		f.createBatch("a", makeUrgent, urgent...)
		f.Waiters.Filler.FillPool("a")
		f.awaitCondition("the queue to know of them", func() bool { return f.laneWaiters() == 100 })
		for n := range 150 {
			f.handOffSlot()
			if got := f.urgentHolders(); got > urgentShare || n < urgentShare && got != n+1 {
				t.Fatalf("after %d slots %d are urgent, want at most %d", n+1, got, urgentShare)
			}
		}
		if got := f.urgentHolders(); got != urgentShare {
			t.Errorf("%d urgent in the end, want %d", got, urgentShare)
		}
		f.expectHeld(60)
	}, urgent...)
}

// A device has an urgent task and an older task of the same pool or of another pool. It must try the urgent task first.
func TestADeviceTriesItsUrgentTaskFirst(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"a", "b"} {
		t.Run(pool, func(t *testing.T) {
			t.Parallel()
			runOnBackends(t, func(b *testBench) {
				b.createPool("a", 1, minute)
				b.createPool("b", 1, minute)
				b.reconcile()
				b.createBatch("a", makeHeavy, "d")
				urgent := b.createBatch(pool, makeUrgent, "d")
				if got := b.readTask(b.expectGrant("d").ID); got.Batch != urgent {
					t.Errorf("given task %+v first", got)
				}
			})
		})
	}
}

// `why` must explain the urgent lane, both for urgent tasks and for the tasks that wait behind them.
func TestWhySpeaksOfTheLane(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 11, minute)
		b.reconcile()
		holders, waiters := numberedNames("h", 11), numberedNames("w", 3)
		b.createBatch("a", makeHeavy, slices.Concat(holders, waiters)...)
		b.createBatch("a", makeUrgent, "u-0", "u-1", "u-2")
		held := map[string]devices.Task{}
		for _, device := range holders {
			held[device] = b.expectGrant(device)
		}
		for _, device := range append(waiters, "u-0") {
			b.expectReason(device, `{"id":"x"}`, devices.ReasonFull)
		}
		full := []decision.Code{decision.CodeFull}
		b.expectWhy(b.deviceTaskIDs("u-0")[0], full, "urgent: it goes before 3 other waiters", "position 1 in")
		b.expectWhy(b.deviceTaskIDs("w-000")[0], full, "an urgent batch goes first")

		for i, device := range []string{"u-0", "u-1"} { // the lane has two slots
			b.sendResult(holders[i], held[holders[i]], "succeeded", "", devices.OutcomeRecorded)
			b.expectGrant(device)
		}
		b.expectReason("u-2", `{"id":"z"}`, devices.ReasonFull)
		e := b.expectWhy(b.deviceTaskIDs("u-2")[0], full, "the urgent lane's share of the pool (2 of 11 slots) is in use: it waits by the weight of its batch")
		if strings.Contains(fmt.Sprint(e), "goes before") {
			t.Errorf("%+v", e)
		}
		if e := b.explainTask(b.deviceTaskIDs("w-000")[0]); strings.Contains(fmt.Sprint(e), "an urgent batch goes first") {
			t.Errorf("others: %+v", e)
		}
	}, withLongPeriod, func(c *dispatcher.Config) { c.Jitter = func() float64 { return 0 } })
}

// A device has tasks in more batches than the semaphore accepts in one request. The random choice of batches must include all urgent ones.
func TestUrgentBatchesAreAmongThoseDrawn(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.reconcile()
		for range 230 {
			b.createBatch("a", makeHeavy, "d")
		}
		urgent := b.createBatch("a", makeUrgent, "d")
		for range 20 {
			b.createBatch("a", makeHeavy, "d")
		}
		if got := b.readTask(b.expectGrant("d").ID); got.Batch != urgent {
			t.Errorf("given task %+v first", got)
		}
	}, func(c *dispatcher.Config) { c.Jitter = func() float64 { return 0.99 } })
}

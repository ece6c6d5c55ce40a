package dispatcher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

const (
	sharedSlots   = 60
	sampleEvery   = 100 * time.Millisecond
	windowSamples = 100 // number of samples: ten seconds on a machine without overload
)

// crowd is a set of devices that report and work. Between two reports, a device waits for the report_after_ms of the reply.
type crowd struct {
	*testBench
	meanWork time.Duration // mean working time, +-50 %
	wait     sync.WaitGroup

	mu           sync.Mutex
	grantOrder   []string       // devices in the order of their grants
	refusals     map[string]int // number of reports without a grant, by device
	grantsBefore map[string]int // number of grants to other devices before the first report of the device
}

// addDevice adds a device that reports until ctx ends.
func (c *crowd) addDevice(ctx context.Context, device string) {
	c.wait.Go(func() {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for body := fmt.Sprintf(`{"id":"%s"}`, device); ; {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			reply := c.sendReport(device, body)
			c.recordReply(device, reply)
			if reply.Task == nil {
				body = fmt.Sprintf(`{"id":"%s"}`, device)
				timer.Reset(time.Duration(reply.ReportAfterMS) * time.Millisecond)
				continue
			}
			body = resultReport(*reply.Task, "succeeded", "")
			timer.Reset(time.Duration((0.5 + rand.Float64()) * float64(c.meanWork)))
		}
	})
}

func (c *crowd) recordReply(device string, reply devices.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.grantsBefore[device]; !known {
		c.grantsBefore[device] = len(c.grantOrder)
	}
	if reply.Task == nil {
		c.refusals[device]++
		return
	}
	c.grantOrder = append(c.grantOrder, device)
}

// sampleHeld takes samples: each sample is the number of slots that each batch holds at that moment.
func (c *crowd) sampleHeld(samples int) (held []map[int64]int) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for range samples {
		<-tick.C
		snapshot, err := c.semaphore.Snapshot(c.ctx, "a")
		must.Succeed(c.t, err)
		heldByBatch := map[int64]int{}
		for _, l := range snapshot.Leases {
			heldByBatch[l.Batch]++
		}
		held = append(held, heldByBatch)
	}
	return held
}

// expectShares checks which share of the slots of two batches the first batch holds on average, in every window of samples. one and other are
// the ids of the two batches. expectShares compares held slots only, so the speed of handoffs does not matter.
func (c *crowd) expectShares(what string, held []map[int64]int, one, other int64, want, tolerance float64) {
	c.t.Helper()
	lowest, highest, all := want, want, 0.0
	for first := range len(held) - windowSamples + 1 {
		var ones, both float64
		for _, heldByBatch := range held[first : first+windowSamples] {
			ones += float64(heldByBatch[one])
			both += float64(heldByBatch[one] + heldByBatch[other])
		}
		share := sharedSlots * ones / both
		lowest, highest, all = min(lowest, share), max(highest, share), all+both/windowSamples
	}
	c.t.Logf("%s: %.1f to %.1f of %d, want %.0f +- %.0f; %.1f %% of the slots held",
		what, lowest, highest, sharedSlots, want, tolerance, 100*all/float64(len(held)-windowSamples+1)/sharedSlots)
	if lowest < want-tolerance || highest > want+tolerance {
		c.t.Errorf("%s: beyond the tolerance", what)
	}
}

// Two batches always have more tasks than the pool has slots. They must share the slots by weight, also after an operator has changed a
// weight. A small batch that is queued behind 50,000 tasks must start soon. The test uses a real Redis and a real Postgres.
func TestSharing(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: shares are measured over 40 s of work, and those of the line daily by a model in slots; make test-long runs it")
	}
	b := newServerBench(t, func(c *dispatcher.Config) { c.ReportPeriod = 10 * time.Second })
	c := &crowd{testBench: b, meanWork: 3 * time.Second, refusals: map[string]int{}, grantsBefore: map[string]int{}}
	b.createPool("a", sharedSlots, 5*minute)
	large := func(prefix string) (names, tasks []string) {
		for i := range 90 {
			names = append(names, fmt.Sprintf("%s%d", prefix, i))
		}
		for i := range 25_000 {
			tasks = append(tasks, names[i%len(names)])
		}
		return names, tasks
	}
	oneNames, oneTasks := large("one-")
	otherNames, otherTasks := large("other-")
	one, other := b.createBatch("a", nil, oneTasks...), b.createBatch("a", nil, otherTasks...)
	ctx, stop := context.WithCancel(t.Context())
	defer c.wait.Wait()
	defer stop()
	for i := range oneNames {
		c.addDevice(ctx, oneNames[i])
		c.addDevice(ctx, otherNames[i])
	}
	c.sampleHeld(40) // start-up phase
	c.expectShares("equal weights", c.sampleHeld(120), one, other, 30, 3)

	_, err := b.store.ChangeBatch(b.ctx, "test", one, func(b *store.Batch) error { b.Weight = 2; return nil })
	must.Succeed(t, err)
	c.sampleHeld(40) // devices that hold a slot keep it for a while after the change
	c.expectShares("weights 2:1", c.sampleHeld(120), one, other, 40, 4)

	small := []string{"small-0", "small-1", "small-2"}
	b.createBatch("a", func(in *store.Batch) { in.Priority = -9 }, small...)
	for _, device := range small {
		c.addDevice(ctx, device)
	}
	c.expectFirstGrant(small)
}

// expectFirstGrant waits until one of the devices in names gets its first grant. These devices report, are asked to
// come again in a second, and then find a slot kept for them. Until then other devices get only slots that are not
// kept.
func (c *crowd) expectFirstGrant(names []string) {
	c.t.Helper()
	first := func() (asks, passed int, ok bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		begin := len(c.grantOrder)
		for _, device := range names {
			asks += c.refusals[device]
			if before, asked := c.grantsBefore[device]; asked {
				begin = min(begin, before)
			}
		}
		passed = slices.IndexFunc(c.grantOrder[begin:], func(device string) bool { return slices.Contains(names, device) })
		return asks, passed, passed >= 0
	}
	asks, passed, ok := first()
	for deadline := time.Now().Add(minute); !ok; asks, passed, ok = first() {
		if time.Now().After(deadline) {
			c.t.Fatal("the small batch never began")
		}
		c.sampleHeld(1)
	}
	c.t.Logf("the first of %d tasks began after %d refusals and %d grants to others since they asked", len(names), asks, passed)
	if asks > 4*len(names) {
		c.t.Errorf("refused %d times", asks)
	}
}

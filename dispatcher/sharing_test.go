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
	"github.com/fleetslots/dispatcher/store"
)

const (
	sharedSlots = 60
	sampleEvery = 100 * time.Millisecond
	window      = 100 // number of samples: ten seconds on a machine without overload
)

// crowd is a set of devices that work, report, and follow report_after_ms.
type crowd struct {
	*bench
	work time.Duration // mean working time, +-50 %
	wait sync.WaitGroup

	mu     sync.Mutex
	grants []string       // devices in the order of their grants
	asks   map[string]int // number of reports without a grant, by device
	before map[string]int // number of grants to other devices before the first report of the device
}

// join adds a device that reports until ctx ends.
func (c *crowd) join(ctx context.Context, device string) {
	c.wait.Go(func() {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for body := fmt.Sprintf(`{"id":"%s"}`, device); ; {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			reply := c.report(device, body)
			c.note(device, reply)
			if reply.Task == nil {
				body = fmt.Sprintf(`{"id":"%s"}`, device)
				timer.Reset(time.Duration(reply.ReportAfterMS) * time.Millisecond)
				continue
			}
			body = result(*reply.Task, "succeeded", "")
			timer.Reset(time.Duration((0.5 + rand.Float64()) * float64(c.work)))
		}
	})
}

func (c *crowd) note(device string, reply devices.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.before[device]; !known {
		c.before[device] = len(c.grants)
	}
	if reply.Task == nil {
		c.asks[device]++
		return
	}
	c.grants = append(c.grants, device)
}

// sample reads n times how many slots each batch holds.
func (c *crowd) sample(n int) (held []map[int64]int) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for range n {
		<-tick.C
		snapshot, err := c.semaphore.Snapshot(c.ctx, "a")
		if err != nil {
			c.t.Fatal(err)
		}
		of := map[int64]int{}
		for _, l := range snapshot.Leases {
			of[l.Batch]++
		}
		held = append(held, of)
	}
	return held
}

// expectShares checks the mean share of batch one in every window of samples. It compares held slots only, so
// the speed of handoffs does not matter.
func (c *crowd) expectShares(what string, held []map[int64]int, one, other int64, want, tolerance float64) {
	c.t.Helper()
	lowest, highest, all := want, want, 0.0
	for first := range len(held) - window + 1 {
		var ones, both float64
		for _, of := range held[first : first+window] {
			ones += float64(of[one])
			both += float64(of[one] + of[other])
		}
		share := sharedSlots * ones / both
		lowest, highest, all = min(lowest, share), max(highest, share), all+both/window
	}
	c.t.Logf("%s: %.1f to %.1f of %d, want %.0f +- %.0f; %.1f %% of the slots held",
		what, lowest, highest, sharedSlots, want, tolerance, 100*all/float64(len(held)-window+1)/sharedSlots)
	if lowest < want-tolerance || highest > want+tolerance {
		c.t.Errorf("%s: beyond the tolerance", what)
	}
}

// Two batches that always have more tasks than slots share the slots by weight, also after an operator
// changed a weight. A small batch that is queued behind 50,000 tasks starts soon. The test uses a real Redis
// and Postgres.
func TestSharing(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: shares are measured over 40 s of work, and those of the line daily by a model in slots; make test-long runs it")
	}
	b := onServers(t, func(c *dispatcher.Config) { c.ReportPeriod = 10 * time.Second })
	c := &crowd{bench: b, work: 3 * time.Second, asks: map[string]int{}, before: map[string]int{}}
	b.pool("a", sharedSlots, 5*minute)
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
	one, other := b.batch("a", nil, oneTasks...), b.batch("a", nil, otherTasks...)
	ctx, stop := context.WithCancel(t.Context())
	defer c.wait.Wait()
	defer stop()
	for i := range oneNames {
		c.join(ctx, oneNames[i])
		c.join(ctx, otherNames[i])
	}
	c.sample(40) // start-up phase
	c.expectShares("equal weights", c.sample(120), one, other, 30, 3)

	if _, err := b.store.ChangeBatch(b.ctx, "test", one, func(b *store.Batch) error { b.Weight = 2; return nil }); err != nil {
		t.Fatal(err)
	}
	c.sample(40) // devices that hold a slot keep it at first
	c.expectShares("weights 2:1", c.sample(120), one, other, 40, 4)

	small := []string{"small-0", "small-1", "small-2"}
	b.batch("a", func(in *store.Batch) { in.Priority = -9 }, small...)
	for _, device := range small {
		c.join(ctx, device)
	}
	c.expectFirst(small)
}

// expectFirst waits for the first grant of one of these devices. They report, are asked to come again in a
// second, and find a slot kept for them. Until then other devices get only the slots that are not kept.
func (c *crowd) expectFirst(of []string) {
	c.t.Helper()
	first := func() (asks, passed int, ok bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		begin := len(c.grants)
		for _, device := range of {
			asks += c.asks[device]
			if before, asked := c.before[device]; asked {
				begin = min(begin, before)
			}
		}
		passed = slices.IndexFunc(c.grants[begin:], func(device string) bool { return slices.Contains(of, device) })
		return asks, passed, passed >= 0
	}
	asks, passed, ok := first()
	for deadline := time.Now().Add(minute); !ok; asks, passed, ok = first() {
		if time.Now().After(deadline) {
			c.t.Fatal("the small batch never began")
		}
		c.sample(1)
	}
	c.t.Logf("the first of %d tasks began after %d refusals and %d grants to others since they asked", len(of), asks, passed)
	if asks > 4*len(of) {
		c.t.Errorf("refused %d times", asks)
	}
}

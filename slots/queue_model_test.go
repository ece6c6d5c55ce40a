package slots_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestSlotsGoByTheModelOfTheQueue runs random histories on a simulated clock. It compares the
// grants, the offers with their durations, and the answers to refused devices with a model that
// keeps the queue in plain lists (queue_rules_test.go).
func TestSlotsGoByTheModelOfTheQueue(t *testing.T) {
	t.Parallel()
	mini, began, pools := miniredis.RunT(t), time.UnixMilli(1_800_000_000_000), atomic.Int64{}
	s := serve(t, servers.RedisAt{Addr: mini.Addr(), InProcess: true})
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		m := &queueMachine{history: history{s, ctx, strconv.FormatInt(pools.Add(1), 10)}, mini: mini, began: began}
		m.queueModel = newQueueModel(rapid.SampledFrom([]int{0, 1, 2, 3, 20, 45}).Draw(t, "capacity"))
		m.urgent = rapid.SampledFrom([]int{10, 40}).Draw(t, "percent")
		m.restore(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"ask":     m.ask,
			"again":   m.ask, // twice as frequent as any other action
			"release": m.release,
			"both":    m.releaseAndAsk,
			"updates": m.updates,
			"joiner":  m.joiner,
			"pass":    m.pass,
			"resize":  m.resize,
		})
	})
}

// queueMachine is a pool and its model.
type queueMachine struct {
	history
	*queueModel

	mini    *miniredis.Miniredis
	began   time.Time
	version int64
	urgent  int           // percentage of the capacity for urgent batches
	next    int           // number of the latest lease
	seen    []slots.Offer // the latest offers; some have ended
}

var queuePace = slots.Pace{Hold: 8 * time.Second, Soonest: time.Second, Period: 30 * time.Second, Offer: 3 * time.Second} //nolint:gochecknoglobals // a constant

// pass moves the clock.
func (m *queueMachine) pass(t *rapid.T) {
	m.now += rapid.SampledFrom([]int64{1, 100, 250, 499, 501, 1000, 1500, 3000, 8000, 31_000, 100_000}).Draw(t, "ms")
}

// at sets the clock of Redis to the clock of the model.
func (m *queueMachine) at() { m.mini.SetTime(m.began.Add(time.Duration(m.now) * time.Millisecond)) }

func (m *queueMachine) restore(t *rapid.T) {
	m.at()
	var holders []slots.Holding
	for slot := range max(m.capacity-rapid.IntRange(0, 3).Draw(t, "free"), 0) {
		h := slots.Holding{Lease: fmt.Sprintf("first-%d", slot), Device: "d", Slot: slot, Batch: rapid.Int64Range(1, 3).Draw(t, "batch")}
		holders, m.holds[h.Lease] = append(holders, h), h.Batch
	}
	m.version++
	if ok, err := m.Restore(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}, holders); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func (m *queueMachine) resize(t *rapid.T) {
	m.at()
	m.capacity = rapid.SampledFrom([]int{0, 1, 2, 3, 20, 45}).Draw(t, "capacity")
	m.version++
	if ok, err := m.Configure(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// wants are tasks that device n may have: of a batch each time with the same weight and lane.
func (m *queueMachine) wants(t *rapid.T, n int) (wants []slots.Want) {
	for i := range rapid.IntRange(1, 3).Draw(t, "wants") {
		m.next++
		batch := rapid.Int64Range(1, 5).Draw(t, "batch")
		wants = append(wants, slots.Want{
			Lease: strconv.Itoa(m.next), TTL: time.Hour, Batch: batch, Weight: []int{1, 2, 1, 10, 3}[batch-1], Lane: []int{0, 0, m.urgent, 0, m.urgent}[batch-1],
			Priority: rapid.IntRange(-1, 1).Draw(t, "priority"), Task: int64(10*n + i),
		})
	}
	return wants
}

func (m *queueMachine) request(t *rapid.T) slots.Request {
	n := rapid.IntRange(0, 9).Draw(t, "device")
	chance := rapid.SampledFrom([]float64{0, 0.5, 0.999}).Draw(t, "chance")
	return slots.Request{Device: fmt.Sprint("d", n), Wants: m.wants(t, n), Chance: chance, Reach: slots.Reach(rapid.IntRange(0, 2).Draw(t, "reach"))}
}

func (m *queueMachine) ask(t *rapid.T) { m.serve(t, nil, m.request(t)) }

// releaseAndAsk frees a slot and asks for one in the same call. The queue has precedence over the
// asker.
func (m *queueMachine) releaseAndAsk(t *rapid.T) {
	if len(m.holds) == 0 {
		t.Skip()
	}
	m.serve(t, []string{rapid.SampledFrom(slices.Sorted(maps.Keys(m.holds))).Draw(t, "lease")}, m.request(t))
}

func (m *queueMachine) serve(t *rapid.T, leases []string, r slots.Request) {
	m.at()
	done, err := m.ServeOne(m.ctx, m.pool, queuePace, slots.Exchange{Leases: leases, Requests: []slots.Request{r}})
	if err != nil || slices.Contains(done.Freed, false) {
		t.Fatal(done, err)
	}
	m.begin(false)
	for _, lease := range leases {
		delete(m.holds, lease)
		m.end()
	}
	want := m.acquire(r)
	done.Got[0].Slot = want.Slot // the model does not determine the number of the slot
	if d := gocmp.Diff(want, done.Got[0]); d != "" {
		t.Fatalf("%+v (-want +got):\n%s", r, d)
	}
	m.compare(t, done.Offers)
}

func (m *queueMachine) release(t *rapid.T) {
	if len(m.holds) == 0 {
		t.Skip()
	}
	leases := []string{rapid.SampledFrom(slices.Sorted(maps.Keys(m.holds))).Draw(t, "lease")}
	m.at()
	freed, offers, err := m.Release(m.ctx, m.pool, queuePace, leases)
	if err != nil || !freed[0] {
		t.Fatal(freed, err)
	}
	m.begin(false)
	delete(m.holds, leases[0])
	m.compare(t, offers)
}

func (m *queueMachine) updates(t *rapid.T) {
	var updates []slots.Update
	for range rapid.IntRange(0, 2).Draw(t, "pieces") {
		n := slots.Update{
			Kind:   rapid.SampledFrom([]slots.UpdateKind{slots.OfferSent, slots.WaiterAway, slots.WaiterLeft, slots.BatchLeft, slots.OffersMissed}).Draw(t, "kind"),
			Device: fmt.Sprint("d", rapid.IntRange(0, 9).Draw(t, "device")), Batch: rapid.Int64Range(1, 5).Draw(t, "batch"),
		}
		if len(m.seen) > 0 && rapid.Bool().Draw(t, "of an offer") {
			o := rapid.SampledFrom(m.seen).Draw(t, "offer")
			n.Device, n.Offer = o.Device, o.ID
		}
		if n.Kind == slots.OfferSent && n.Offer == 0 {
			continue
		}
		updates = append(updates, n)
	}
	m.at()
	line, err := m.OfferSlots(m.ctx, m.pool, queuePace, updates)
	if err != nil {
		t.Fatal(err)
	}
	m.begin(slices.ContainsFunc(updates, func(n slots.Update) bool { return n.Kind == slots.OffersMissed }))
	for _, n := range updates {
		m.hear(n)
	}
	m.compare(t, line.Offers)
}

func (m *queueMachine) joiner(t *rapid.T) {
	n := rapid.IntRange(0, 9).Draw(t, "device")
	w := m.wants(t, n)[0]
	joiner := slots.Joiner{Waiter: slots.Waiter{Device: fmt.Sprint("d", n), Batch: w.Batch, Weight: w.Weight, Lane: w.Lane, Priority: w.Priority, Task: w.Task}, Reach: slots.ReachPush}
	m.at()
	line, err := m.Join(m.ctx, m.pool, queuePace, []slots.Joiner{joiner})
	if err != nil {
		t.Fatal(err)
	}
	m.begin(false)
	if there := m.waiters[joiner.Device]; there == nil || w.Lane > 0 && !there.offered {
		m.percent = max(m.percent, w.Lane)
		m.join(joiner.Device, w, 1, 1)
	}
	m.compare(t, line.Offers)
}

// compare ends a call: the returned offers must be the offers of the model.
func (m *queueMachine) compare(t *rapid.T, offers []slots.Offer) {
	m.end()
	var got []string
	for _, o := range offers {
		got = append(got, fmt.Sprintf("%s %d %d for %s", o.Device, o.Batch, o.Task, o.Left))
		if w := m.waiters[o.Device]; w != nil {
			w.id = o.ID
		}
	}
	if d := gocmp.Diff(m.told, got); d != "" {
		t.Fatalf("offers to send (-want +got):\n%s", d)
	}
	m.seen = append(m.seen, offers...)
}

// check compares the whole state with the model after every action.
func (m *queueMachine) check(t *rapid.T) {
	m.at()
	snapshot := m.known(t)
	holds := map[string]int64{}
	for _, l := range snapshot.Leases {
		holds[l.ID] = l.Batch
	}
	if d := gocmp.Diff(m.holds, holds); d != "" {
		t.Fatalf("held (-want +got):\n%s", d)
	}
	var want, got []string
	for _, w := range m.waiters {
		if w.offered {
			want = append(want, fmt.Sprintf("%s %d for %d", w.device, w.Batch, w.ends-m.now))
		}
	}
	for _, o := range snapshot.Reserved {
		got = append(got, fmt.Sprintf("%s %d for %d", o.Device, o.Batch, o.Left.Milliseconds()))
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := gocmp.Diff(want, got); d != "" {
		t.Fatalf("offered (-want +got):\n%s", d)
	}
	m.checkStanding(t)
}

// checkStanding compares Standing with the model for each waiter, with its task and other tasks.
func (m *queueMachine) checkStanding(t *rapid.T) {
	for _, device := range slices.Sorted(maps.Keys(m.waiters)) {
		w := m.waiters[device]
		got, err := m.Standing(m.ctx, m.pool, device, []slots.Waiter{{Batch: w.Batch, Task: w.Task, Weight: w.Weight, Lane: w.Lane, Priority: w.Priority}})
		if err != nil {
			t.Fatal(err)
		}
		want := slots.Standing{
			Known: true, Capacity: m.capacity, Held: len(m.holds), Left: m.capacity - len(m.holds) - m.reserved(), InLine: w.Task,
			Positions: []int{m.position(device, w.Want)}, Due: time.Duration(w.due-m.now) * time.Millisecond,
			Waiting: len(m.waiters), Lane: m.laneNow(),
		}
		if w.offered {
			want.Offered = time.Duration(w.ends-m.now) * time.Millisecond
		}
		if d := gocmp.Diff(want, got); d != "" {
			t.Fatalf("%s (-want +got):\n%s", device, d)
		}
	}
}

func inBatch(a, b slots.Want) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task))
}

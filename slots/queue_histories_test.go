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

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestSlotsGoByTheModelOfTheQueue runs random histories on a simulated clock. It compares the semaphore with a model that keeps the queue
// in plain lists (queue_model_test.go). The grants, the offers with their durations, and the answers to refused devices must be equal.
func TestSlotsGoByTheModelOfTheQueue(t *testing.T) {
	t.Parallel()
	mini, began, pools := miniredis.RunT(t), time.UnixMilli(1_800_000_000_000), atomic.Int64{}
	s := connect(t, servers.RedisAt{Addr: mini.Addr(), InProcess: true})
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		m := &queueMachine{callHistory: callHistory{s, ctx, strconv.FormatInt(pools.Add(1), 10)}, mini: mini, startedAt: began}
		m.queueModel = newQueueModel(rapid.SampledFrom([]int{0, 1, 2, 3, 20, 45}).Draw(t, "capacity"))
		m.urgentPercent = rapid.SampledFrom([]int{10, 40}).Draw(t, "percent")
		m.restore(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"ask":     m.requestSlot,
			"again":   m.requestSlot, // twice as frequent as any other action
			"release": m.release,
			"both":    m.releaseAndRequest,
			"updates": m.sendUpdates,
			"refresh": m.refreshWaiters,
			"joiner":  m.joinWaiter,
			"pass":    m.advanceClock,
			"resize":  m.resize,
		})
	})
}

// queueMachine makes the random calls to one pool, and has the model of this pool.
type queueMachine struct {
	callHistory
	*queueModel

	mini          *miniredis.Miniredis
	startedAt     time.Time
	version       int64
	urgentPercent int           // percentage of the capacity for urgent batches
	lastLease     int           // number of the latest lease
	latestOffers  []slots.Offer // the latest offers; some have ended
}

var queuePace = slots.Pace{MeanHold: 8 * time.Second, MinWait: time.Second, ReportPeriod: 30 * time.Second, OfferTTL: 3 * time.Second} //nolint:gochecknoglobals // a constant

// advanceClock advances the simulated clock by a random time.
func (m *queueMachine) advanceClock(t *rapid.T) {
	m.now += rapid.SampledFrom([]int64{1, 100, 250, 499, 501, 1000, 1500, 3000, 8000, 31_000, 100_000}).Draw(t, "ms")
}

func (m *queueMachine) setRedisClock() {
	m.mini.SetTime(m.startedAt.Add(time.Duration(m.now) * time.Millisecond))
}

func (m *queueMachine) restore(t *rapid.T) {
	m.setRedisClock()
	var holders []slots.LedgerGrant
	for slot := range max(m.capacity-rapid.IntRange(0, 3).Draw(t, "free"), 0) {
		h := slots.LedgerGrant{Lease: fmt.Sprintf("first-%d", slot), Device: "d", Slot: slot, Batch: rapid.Int64Range(1, 3).Draw(t, "batch")}
		holders, m.batchByLease[h.Lease] = append(holders, h), h.Batch
	}
	m.version++
	if ok, err := m.Restore(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}, holders); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func (m *queueMachine) resize(t *rapid.T) {
	m.setRedisClock()
	m.capacity = rapid.SampledFrom([]int{0, 1, 2, 3, 20, 45}).Draw(t, "capacity")
	m.version++
	if ok, err := m.Configure(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// drawWants returns the wants of device n: random tasks that ask for a slot. The weight of a batch and whether it is urgent depend only on
// the batch.
func (m *queueMachine) drawWants(t *rapid.T, n int) (wants []slots.Want) {
	for i := range rapid.IntRange(1, 3).Draw(t, "wants") {
		m.lastLease++
		batch := rapid.Int64Range(1, 5).Draw(t, "batch")
		wants = append(wants, slots.Want{
			Lease: strconv.Itoa(m.lastLease), TTL: time.Hour, Batch: batch, Weight: []int{1, 2, 1, 10, 3}[batch-1], LanePercent: []int{0, 0, m.urgentPercent, 0, m.urgentPercent}[batch-1],
			Priority: rapid.IntRange(-1, 1).Draw(t, "priority"), Task: int64(10*n + i),
		})
	}
	return wants
}

func (m *queueMachine) drawRequest(t *rapid.T) slots.Request {
	n := rapid.IntRange(0, 9).Draw(t, "device")
	chance := rapid.SampledFrom([]float64{0, 0.5, 0.999}).Draw(t, "chance")
	return slots.Request{Device: fmt.Sprint("d", n), Wants: m.drawWants(t, n), Chance: chance, Reach: slots.Reach(rapid.IntRange(0, 2).Draw(t, "reach"))}
}

func (m *queueMachine) requestSlot(t *rapid.T) { m.serve(t, nil, m.drawRequest(t)) }

// releaseAndRequest frees a slot and asks for a slot in one call. In this case devices that wait in the queue come before the device that
// asks.
func (m *queueMachine) releaseAndRequest(t *rapid.T) {
	if len(m.batchByLease) == 0 {
		t.Skip()
	}
	m.serve(t, []string{rapid.SampledFrom(slices.Sorted(maps.Keys(m.batchByLease))).Draw(t, "lease")}, m.drawRequest(t))
}

func (m *queueMachine) serve(t *rapid.T, leases []string, r slots.Request) {
	m.setRedisClock()
	done, err := m.ServeOne(m.ctx, m.pool, queuePace, slots.Exchange{Leases: leases, Requests: []slots.Request{r}})
	if err != nil || slices.Contains(done.Freed, false) {
		t.Fatal(done, err)
	}
	m.handleTimers(false)
	for _, lease := range leases {
		delete(m.batchByLease, lease)
		m.offerFreeSlots()
	}
	want := m.acquireSlot(r)
	done.Acquisitions[0].Slot = want.Slot // the model does not determine the number of the slot
	if d := gocmp.Diff(want, done.Acquisitions[0]); d != "" {
		t.Fatalf("%+v (-want +got):\n%s", r, d)
	}
	m.compareOffers(t, done.Offers)
}

// refreshWaiters sends the reports of some devices to Refresh. It must change nothing but the times at which the next reports of these
// devices are due.
func (m *queueMachine) refreshWaiters(t *rapid.T) {
	var refreshes []slots.WaiterRefresh
	var want []time.Duration
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 1, 5, rapid.ID).Draw(t, "devices") {
		r := slots.WaiterRefresh{Device: fmt.Sprint("d", n), Chance: rapid.SampledFrom([]float64{0, 0.5, 0.999}).Draw(t, "chance"), Reach: slots.Reach(rapid.IntRange(0, 2).Draw(t, "reach"))}
		if w := m.waiters[r.Device]; w != nil && rapid.Bool().Draw(t, "same reach") {
			r.Reach = slots.Reach(w.reach) // from 0 to 2
		}
		refreshes, want = append(refreshes, r), append(want, time.Duration(m.refreshWaiter(r))*time.Millisecond)
	}
	m.setRedisClock()
	got, err := m.Refresh(m.ctx, m.pool, queuePace, refreshes)
	must.Succeed(t, err)
	if d := gocmp.Diff(want, got); d != "" {
		t.Fatalf("%+v (-want +got):\n%s", refreshes, d)
	}
}

func (m *queueMachine) release(t *rapid.T) {
	if len(m.batchByLease) == 0 {
		t.Skip()
	}
	leases := []string{rapid.SampledFrom(slices.Sorted(maps.Keys(m.batchByLease))).Draw(t, "lease")}
	m.setRedisClock()
	freed, offers, err := m.Release(m.ctx, m.pool, queuePace, leases)
	if err != nil || !freed[0] {
		t.Fatal(freed, err)
	}
	m.handleTimers(false)
	delete(m.batchByLease, leases[0])
	m.compareOffers(t, offers)
}

func (m *queueMachine) sendUpdates(t *rapid.T) {
	var updates []slots.Update
	for range rapid.IntRange(0, 2).Draw(t, "pieces") {
		n := slots.Update{
			Kind:   rapid.SampledFrom([]slots.UpdateKind{slots.OfferSent, slots.WaiterPassedOver, slots.WaiterLeft, slots.BatchLeft, slots.ResendParkedOffers}).Draw(t, "kind"),
			Device: fmt.Sprint("d", rapid.IntRange(0, 9).Draw(t, "device")), Batch: rapid.Int64Range(1, 5).Draw(t, "batch"),
		}
		if len(m.latestOffers) > 0 && rapid.Bool().Draw(t, "of an offer") {
			o := rapid.SampledFrom(m.latestOffers).Draw(t, "offer")
			n.Device, n.Offer = o.Device, o.ID
		}
		if n.Kind == slots.OfferSent && n.Offer == 0 {
			continue
		}
		updates = append(updates, n)
	}
	m.setRedisClock()
	line, err := m.OfferSlots(m.ctx, m.pool, queuePace, updates)
	must.Succeed(t, err)
	m.handleTimers(slices.ContainsFunc(updates, func(n slots.Update) bool { return n.Kind == slots.ResendParkedOffers }))
	for _, n := range updates {
		m.applyUpdate(n)
	}
	m.compareOffers(t, line.Offers)
}

func (m *queueMachine) joinWaiter(t *rapid.T) {
	n := rapid.IntRange(0, 9).Draw(t, "device")
	w := m.drawWants(t, n)[0]
	joiner := slots.Joiner{Device: fmt.Sprint("d", n), Want: slots.Want{Batch: w.Batch, Weight: w.Weight, LanePercent: w.LanePercent, Priority: w.Priority, Task: w.Task}, Reach: slots.ReachPush}
	m.setRedisClock()
	line, err := m.Join(m.ctx, m.pool, queuePace, []slots.Joiner{joiner})
	must.Succeed(t, err)
	m.handleTimers(false)
	there := m.waiters[joiner.Device]
	missed := there != nil && there.class == "P" && there.reach > 0
	if there == nil || !there.isOffered && (w.LanePercent > 0 || missed && w.Task > there.Task) {
		m.lanePercent = max(m.lanePercent, w.LanePercent)
		m.joinQueue(joiner.Device, w, 1, 1)
	}
	m.compareOffers(t, line.Offers)
}

// compareOffers ends a call of the model: it offers the free slots of the model. The parameter offers, which the semaphore returned, must
// equal the offers of the model.
func (m *queueMachine) compareOffers(t *rapid.T, offers []slots.Offer) {
	m.offerFreeSlots()
	m.closed = &closedQueue{m.capacity, m.countReserved()}
	var got []string
	for _, o := range offers {
		got = append(got, fmt.Sprintf("%s %d %d for %s", o.Device, o.Batch, o.Task, o.Left))
		if w := m.waiters[o.Device]; w != nil {
			w.id = o.ID
		}
	}
	if d := gocmp.Diff(m.offersToSend, got); d != "" {
		t.Fatalf("offers to send (-want +got):\n%s", d)
	}
	m.latestOffers = append(m.latestOffers, offers...)
}

// check compares the whole state of the pool with the model. It runs after every call.
func (m *queueMachine) check(t *rapid.T) {
	m.setRedisClock()
	snapshot := m.knownSnapshot(t)
	holds := map[string]int64{}
	for _, l := range snapshot.Leases {
		holds[l.ID] = l.Batch
	}
	if d := gocmp.Diff(m.batchByLease, holds); d != "" {
		t.Fatalf("held (-want +got):\n%s", d)
	}
	var want, got []string
	for _, w := range m.waiters {
		if w.isOffered {
			want = append(want, fmt.Sprintf("%s %d for %d", w.device, w.Batch, w.offerEnds-m.now))
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
	m.checkQueuePlaces(t)
}

// checkQueuePlaces compares the positions that ReadQueuePlaces returns with the model. It asks for each waiter, with the task with which it
// waits and with other tasks.
func (m *queueMachine) checkQueuePlaces(t *rapid.T) {
	for _, device := range slices.Sorted(maps.Keys(m.waiters)) {
		w := m.waiters[device]
		got, err := m.ReadQueuePlaces(m.ctx, m.pool, device, []slots.Want{{Batch: w.Batch, Task: w.Task, Weight: w.Weight, LanePercent: w.LanePercent, Priority: w.Priority}})
		must.Succeed(t, err)
		want := slots.QueuePlaces{
			PoolKnown: true, Capacity: m.capacity, Held: len(m.batchByLease), UnreservedSlots: m.capacity - len(m.batchByLease) - m.countReserved(), WaitingTask: w.Task,
			Positions: []int{m.expectedPosition(device, w.Want)}, ReportDueIn: time.Duration(w.dueAt-m.now) * time.Millisecond,
			Waiting: len(m.waiters), Lane: m.currentLane(),
		}
		if w.isOffered {
			want.OfferLeft = time.Duration(w.offerEnds-m.now) * time.Millisecond
		}
		if d := gocmp.Diff(want, got); d != "" {
			t.Fatalf("%s (-want +got):\n%s", device, d)
		}
	}
}

func compareInBatch(a, b slots.Want) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task))
}

package slots_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/slots"
)

// When a waiter of the model is due: a place is kept for who is due now; for who
// is due soon, only after it was passed over often; for nobody else.
const (
	dueNow    = 0
	dueSoon   = 40 * time.Second
	dueLater  = time.Hour
	usualHold = 800 * time.Second // keeps a place for 20 s
)

// TestLineModel compares who gets a slot, and where the others stand, with a
// model that hands out places one by one.
func TestLineModel(t *testing.T) {
	t.Parallel()
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, b)
			s.Semaphore = slots.NewPatient(s.client)
			var pools atomic.Int64
			rapid.Check(t, func(rt *rapid.T) {
				m := &lineMachine{server: s, pool: fmt.Sprintf("%s.%d", t.Name(), pools.Add(1)), ctx: t.Context(), holds: map[string]int64{}}
				m.forgetLine()
				m.capacity = rapid.SampledFrom([]int{0, 1, 2, 3, 5, 20, 45}).Draw(rt, "capacity")
				m.restore(rt)
				rt.Repeat(map[string]func(*rapid.T){
					"":        m.check,
					"ask":     m.ask,
					"again":   m.ask, // twice as often as anything else
					"release": m.release,
					"due":     m.changeDue,
					"resize":  m.resize,
					"lose":    m.lose,
				})
			})
		})
	}
}

// waiter is a device in the model's line.
type waiter struct {
	slots.Want
	due time.Duration
}

// lineMachine is a pool beside its model.
type lineMachine struct {
	*server
	ctx  context.Context //nolint:containedctx // rapid's actions take none
	pool string

	capacity int
	version  int64
	next     int              // lease
	holds    map[string]int64 // lease -> batch

	line   map[string]waiter // by device
	weight map[int64]int
	turn   map[int64]int       // virtual time
	passed map[int64]passedOne // by batch

	lost  bool // a key was lost, and nothing was mended yet
	ghost bool // of the line something is left
	known bool // what the batches hold was counted
}

type passedOne struct {
	device string
	slots.Want
	times int
}

func (m *lineMachine) forgetLine() {
	m.line, m.weight, m.turn, m.passed = map[string]waiter{}, map[int64]int{}, map[int64]int{}, map[int64]passedOne{}
}

func (m *lineMachine) restore(t *rapid.T) {
	m.version++
	var holders []slots.Holding
	for slot := range max(m.capacity-rapid.IntRange(0, 3).Draw(t, "free"), 0) {
		lease, batch := fmt.Sprintf("first-%d", slot), rapid.Int64Range(1, 3).Draw(t, "batch")
		holders = append(holders, slots.Holding{Lease: lease, Device: "d", Slot: slot, Batch: batch})
		m.holds[lease] = batch
	}
	if ok, err := m.Restore(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}, holders); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func (m *lineMachine) resize(t *rapid.T) {
	m.capacity = rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 6, 20, 45}).Draw(t, "capacity")
	m.version++
	if _, err := m.Configure(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}); err != nil {
		t.Fatal(err)
	}
}

func (m *lineMachine) release(t *rapid.T) {
	if len(m.holds) == 0 {
		t.Skip()
	}
	lease := rapid.SampledFrom(slices.Sorted(maps.Keys(m.holds))).Draw(t, "lease")
	if freed, _, err := m.Release(m.ctx, m.pool, slots.Pace{}, []string{lease}); err != nil || !freed[0] {
		t.Fatal(freed, err)
	}
	delete(m.holds, lease)
}

func (m *lineMachine) changeDue(t *rapid.T) {
	if len(m.line) == 0 {
		t.Skip()
	}
	device := rapid.SampledFrom(slices.Sorted(maps.Keys(m.line))).Draw(t, "device")
	w := m.line[device]
	w.due = rapid.SampledFrom([]time.Duration{dueNow, dueNow, dueSoon, dueLater}).Draw(t, "due")
	m.line[device] = w
	m.setDue(t, device, w.due)
}

// setDue changes when a device was told to come, by the clock of Redis.
func (m *lineMachine) setDue(t *rapid.T, device string, in time.Duration) {
	now, err := m.client.Time(m.ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	due := redis.Z{Member: device, Score: float64(now.Add(in).UnixMilli())}
	if err := m.client.ZAddXX(m.ctx, "slots:{"+m.pool+"}:due", due).Err(); err != nil {
		t.Fatal(err)
	}
}

// lose deletes one key of those that order.
func (m *lineMachine) lose(t *rapid.T) {
	key := rapid.SampledFrom([]string{"batch", "turn", "line", "due", "place"}).Draw(t, "key")
	if err := m.client.Del(m.ctx, "slots:{"+m.pool+"}:"+key).Err(); err != nil {
		t.Fatal(err)
	}
	m.lost = true
	switch key {
	case "batch":
		m.weight, m.passed, m.known = map[int64]int{}, map[int64]passedOne{}, false
	case "turn":
		m.turn = map[int64]int{}
	default:
		m.ghost = key != "line" && (m.ghost || len(m.line) > 0)
		m.line = map[string]waiter{}
	}
}

func (m *lineMachine) anyWants(t *rapid.T) []slots.Want {
	wants := make([]slots.Want, rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "wants"))
	for i := range wants {
		m.next++
		batch := rapid.Int64Range(1, 4).Draw(t, "batch")
		wants[i] = slots.Want{
			Lease: strconv.Itoa(m.next), TTL: time.Hour, Batch: batch,
			Weight:   rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "weight"),
			Priority: rapid.IntRange(-1, 1).Draw(t, "priority"),
			Task:     batch*1000 + int64(rapid.IntRange(0, 9).Draw(t, "task")),
		}
		for _, w := range wants[:i] { // of a batch there is one weight
			if w.Batch == batch {
				wants[i].Weight = w.Weight
				wants[i].Task = max(wants[i].Task, w.Task+1)
			}
		}
	}
	return wants
}

func (m *lineMachine) ask(t *rapid.T) {
	device := fmt.Sprintf("d%d", rapid.IntRange(0, 9).Draw(t, "device"))
	wants := m.anyWants(t)
	pace := slots.Pace{Hold: usualHold, Soonest: dueLater, Longest: dueLater}
	var standings []int
	if !m.lost {
		standings = m.standings(t, device, wants)
	}
	got, _, err := m.Acquire(m.ctx, m.pool, pace, []slots.Request{{Device: device, Wants: wants, Chance: 0.5}})
	if err != nil {
		t.Fatal(err)
	}
	want := m.modelAsk(device, wants)
	a := got[0]
	a.Slot = 0
	if a.After < dueLater && a.Status == slots.StatusFull {
		t.Fatalf("told to come after %s", a.After)
	}
	a.After = 0
	if a != want {
		t.Fatalf("%s asks for %+v: %+v, want %+v", device, wants, a, want)
	}
	if len(standings) > 0 && a.Status == slots.StatusFull && slices.Min(standings) != a.Position {
		t.Fatalf("stands at %d, and as tasks at %v", a.Position, standings)
	}
}

// standings are the positions of the wants, read before the device asks; none
// when there are several, of which each may bring a new weight.
func (m *lineMachine) standings(t *rapid.T, device string, wants []slots.Want) (positions []int) {
	if len(wants) > 1 {
		return nil
	}
	for _, w := range wants {
		got, err := m.Standing(m.ctx, m.pool, []slots.Waiter{{Device: device, Batch: w.Batch, Task: w.Task, Weight: w.Weight, Priority: w.Priority}})
		if err != nil || !got[0].Known || got[0].Held != len(m.holds) || got[0].Capacity != m.capacity {
			t.Fatalf("standing %+v, %v", got, err)
		}
		positions = append(positions, got[0].Position)
	}
	return positions
}

// check compares what can be seen after every action.
func (m *lineMachine) check(t *rapid.T) {
	snapshot, err := m.Snapshot(m.ctx, m.pool)
	if err != nil || !snapshot.Known {
		t.Fatal(snapshot, err)
	}
	holds := map[string]int64{}
	for _, l := range snapshot.Leases {
		holds[l.ID] = l.Batch
	}
	if !maps.Equal(holds, m.holds) {
		t.Fatalf("held %v, want %v", holds, m.holds)
	}
	counted, err := m.client.HGetAll(m.ctx, "slots:{"+m.pool+"}:batch").Result()
	if err != nil {
		t.Fatal(err)
	}
	if counted["counted"] == "" {
		return // to be counted anew
	}
	for field, n := range counted {
		batch, held := strings.CutPrefix(field, "h")
		if number, err := strconv.ParseInt(batch, 10, 64); held && (err != nil || n != strconv.Itoa(m.held(number))) {
			t.Fatalf("batch %s holds %d and is counted as %s (%v)", batch, m.held(number), n, err)
		}
	}
}

func (m *lineMachine) held(batch int64) (n int) {
	for _, b := range m.holds {
		if b == batch {
			n++
		}
	}
	return n
}

// The model.

func inBatch(a, b slots.Want) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task))
}

// view is the contest as one asker sees it.
type view struct {
	m       *lineMachine
	device  string
	weight  map[int64]int
	waiting map[int64][]passedOne // of others, in order
	newest  int
}

func (m *lineMachine) view(device string, wants []slots.Want) view {
	v := view{m: m, device: device, weight: maps.Clone(m.weight), waiting: map[int64][]passedOne{}}
	for _, w := range wants {
		v.weight[w.Batch] = w.Weight
	}
	for d, w := range m.line {
		if d != device {
			v.waiting[w.Batch] = append(v.waiting[w.Batch], passedOne{device: d, Want: w.Want})
		}
	}
	for _, list := range v.waiting {
		slices.SortFunc(list, func(a, b passedOne) int {
			return cmp.Or(inBatch(a.Want, b.Want), strings.Compare(a.device, b.device))
		})
	}
	for _, turn := range m.turn {
		v.newest = max(v.newest, turn)
	}
	return v
}

func (v view) contends(batch int64, wants []slots.Want) bool {
	return len(v.waiting[batch]) > 0 || batch == v.m.line[v.device].Batch ||
		slices.ContainsFunc(wants, func(w slots.Want) bool { return w.Batch == batch })
}

func (v view) turn(batch int64) int {
	turn, ok := v.m.turn[batch]
	if !ok {
		turn = v.newest
	}
	return max(turn, v.newest-1_000_000)
}

func (v view) first(a, b int64, given map[int64]int) bool {
	x := (v.m.held(a) + given[a]) * max(v.weight[b], 1)
	y := (v.m.held(b) + given[b]) * max(v.weight[a], 1)
	return cmp.Or(cmp.Compare(x, y), cmp.Compare(v.turn(a), v.turn(b)), cmp.Compare(a, b)) < 0
}

// grantsUntil hands out places one by one until the batch has k.
func (v view) grantsUntil(batch int64, k int, wanting map[int64]int) int {
	given := map[int64]int{}
	wanting = maps.Clone(wanting)
	wanting[batch] = k
	for grants := 1; ; grants++ {
		var best int64
		for b, n := range wanting {
			if given[b] < n && (best == 0 || v.first(b, best, given)) {
				best = b
			}
		}
		given[best]++
		if best == batch && given[batch] == k {
			return grants
		}
	}
}

func (v view) position(w slots.Want) int {
	wanting := map[int64]int{}
	for b, list := range v.waiting {
		wanting[b] = len(list)
	}
	k := 1
	for _, o := range v.waiting[w.Batch] {
		if cmp.Or(inBatch(o.Want, w), strings.Compare(o.device, v.device)) < 0 {
			k++
		}
	}
	return v.grantsUntil(w.Batch, k, wanting)
}

func (m *lineMachine) modelPosition(device string, wants []slots.Want) int {
	v := m.view(device, wants)
	position := v.position(wants[0])
	for _, w := range wants[1:] {
		position = min(position, v.position(w))
	}
	return position
}

// patience is how often the first waiter of a batch is passed over.
func (m *lineMachine) patience() int { return max(m.capacity, 3) }

func (v view) isExpected(i int, o passedOne) bool {
	due := v.m.line[o.device].due
	passed := v.m.passed[o.Batch]
	urgent := v.m.held(o.Batch) == 0 && v.m.capacity >= 20
	impatient := urgent || i == 0 && passed.device == o.device && passed.Task == o.Task && passed.Priority == o.Priority && passed.times >= v.m.patience()
	return due == dueNow || due == dueSoon && impatient
}

func (v view) hasTurn(w slots.Want, free int) bool {
	wanting, k := map[int64]int{}, 1
	for b, list := range v.waiting {
		for i, o := range list {
			if !v.isExpected(i, o) {
				continue
			}
			wanting[b]++
			if b == w.Batch && cmp.Or(inBatch(o.Want, w), strings.Compare(o.device, v.device)) < 0 {
				k++
			}
		}
	}
	return v.grantsUntil(w.Batch, k, wanting) <= free
}

func (m *lineMachine) modelAsk(device string, wants []slots.Want) slots.Acquisition {
	free := m.capacity - len(m.holds)
	if len(m.line) == 0 && !m.ghost && free > 0 && len(wants) == 1 {
		m.holds[wants[0].Lease] = wants[0].Batch
		return slots.Acquisition{Status: slots.StatusAcquired}
	}
	m.lost, m.ghost = false, false
	v := m.view(device, wants)
	if !m.known { // with a count, batches that had no turn for long are forgotten
		maps.DeleteFunc(m.turn, func(b int64, turn int) bool { return turn <= v.newest-1_000_000 && !v.contends(b, wants) })
		m.known = true
	}
	ordered := slices.Clone(wants)
	slices.SortFunc(ordered, func(a, b slots.Want) int {
		switch {
		case a.Batch == b.Batch:
			return inBatch(a, b)
		case v.first(a.Batch, b.Batch, nil):
			return -1
		}
		return 1
	})
	for _, w := range ordered {
		if free > max(m.capacity/20, 1) || free > 0 && v.hasTurn(w, free) {
			m.grantModel(v, device, w)
			return slots.Acquisition{Status: slots.StatusAcquired, Want: slices.Index(wants, w)}
		}
	}
	position := m.modelPosition(device, wants)
	best := ordered[slices.IndexFunc(ordered, func(w slots.Want) bool { return v.position(w) == position })]
	m.line[device] = waiter{Want: best, due: dueLater}
	m.weight[best.Batch] = best.Weight
	if _, known := m.turn[best.Batch]; !known {
		m.turn[best.Batch] = v.newest
	}
	return slots.Acquisition{Status: slots.StatusFull, Position: position}
}

func (m *lineMachine) grantModel(v view, device string, w slots.Want) {
	for b, list := range v.waiting {
		head := list[0]
		over := b == w.Batch && cmp.Or(inBatch(head.Want, w), strings.Compare(head.device, device)) < 0
		if !over && (b == w.Batch || !v.first(b, w.Batch, nil)) {
			continue
		}
		old := m.passed[b]
		if old.device != head.device || old.Task != head.Task || old.Priority != head.Priority {
			old = head
		}
		old.times = min(old.times+1, max(old.times, m.patience()))
		m.passed[b] = old
	}
	m.turn[w.Batch] = v.turn(w.Batch) + 1_000_000/w.Weight
	if len(v.waiting[w.Batch]) > 0 {
		m.weight[w.Batch] = w.Weight
	}
	delete(m.line, device)
	m.holds[w.Lease] = w.Batch
}

package slots_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// TestPlacesGoByTheModelOfTheLine compares who gets a slot, and where the others
// stand, with a model that hands out places one by one.
func TestPlacesGoByTheModelOfTheLine(t *testing.T) {
	t.Parallel()
	histories(t, func(t *rapid.T, h history) {
		m := &lineMachine{history: h, holds: map[string]int64{}}
		m.forgetLine()
		m.capacity = rapid.SampledFrom([]int{0, 1, 2, 3, 5, 20, 45}).Draw(t, "capacity")
		m.restore(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"ask":     m.ask,
			"again":   m.ask, // twice as often as anything else
			"release": m.release,
			"due":     m.changeDue,
			"resize":  m.resize,
			"lose":    m.lose,
		})
	})
}

// waiter is a device in the model's line.
type waiter struct {
	slots.Want
	due time.Duration
}

// lineMachine is a pool beside its model.
type lineMachine struct {
	history

	capacity int
	version  int64
	next     int              // lease
	holds    map[string]int64 // lease -> batch

	line   map[string]waiter // by device
	weight map[int64]int
	turn   map[int64]int       // virtual time
	passed map[int64]passedOne // by batch

	lost    bool // a key was lost, and nothing was mended yet
	ghost   bool // of the line something is left
	counted bool // what the batches hold
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
	m.due(t, m.pool, device, w.due)
}

// lose deletes one key of those that order.
func (m *lineMachine) lose(t *rapid.T) {
	key := rapid.SampledFrom([]string{"batch", "turn", "line", "due", "place"}).Draw(t, "key")
	if err := m.client.Del(m.ctx, m.key(key)).Err(); err != nil {
		t.Fatal(err)
	}
	m.lost = true
	switch key {
	case "batch":
		m.weight, m.passed, m.counted = map[int64]int{}, map[int64]passedOne{}, false
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
	holds := map[string]int64{}
	for _, l := range m.known(t).Leases {
		holds[l.ID] = l.Batch
	}
	if !maps.Equal(holds, m.holds) {
		t.Fatalf("held %v, want %v", holds, m.holds)
	}
	counted, err := m.client.HGetAll(m.ctx, m.key("batch")).Result()
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

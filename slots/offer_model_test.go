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

// TestOffersKeepTheirPromises holds every script to what offers promise, over random
// histories: sent again, out of order, with pools resized, and parts of the line
// or all of Redis lost in between.
//   - What is held never exceeds the capacity, but where that was lowered; an
//     offer is to one device, who is no holder by it.
//   - No place that is neither held nor reserved is left while somebody is ready,
//     unless it is kept for one who polls and is expected.
//   - Who was offered a place, and asks in time, gets it.
//   - What is offered counts for its batch as what is held does.
//
// How often a waiter may be passed over is tested in offer_test.go, and acquires
// that are sent again in replay_test.go.
func TestOffersKeepTheirPromises(t *testing.T) {
	t.Parallel()
	histories(t, func(t *rapid.T, h history) {
		m := &offerMachine{history: h, holds: map[string]string{}}
		m.capacity = rapid.SampledFrom([]int{0, 1, 2, 3, 5}).Draw(t, "capacity")
		m.restore(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"ask":     m.ask,
			"again":   m.ask,
			"release": m.release,
			"more":    m.release,
			"news":    m.news,
			"seats":   m.seats,
			"expire":  m.expireOne,
			"due":     m.changeDue,
			"resize":  m.resize,
			"lose":    m.lose,
			"wipe":    m.wipe,
		})
	})
}

type offerMachine struct {
	history

	capacity int
	version  int64
	next     int
	holds    map[string]string // lease -> device
	seen     []slots.Offer     // the latest of them, some over
	moved    bool              // something changed beside the scripts, and none that offers ran since
	drifted  bool              // offers were lost that are still counted
}

func (m *offerMachine) restore(t *rapid.T) {
	m.version++
	var holders []slots.Holding
	for lease, device := range m.holds {
		holders = append(holders, slots.Holding{Lease: lease, Device: device, Slot: len(holders), Batch: 1})
	}
	if ok, err := m.Restore(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}, holders); !ok || err != nil {
		t.Fatal(ok, err)
	}
	m.drifted = false
}

func (m *offerMachine) device(t *rapid.T) string {
	return fmt.Sprintf("d%d", rapid.IntRange(0, 7).Draw(t, "device"))
}

func (m *offerMachine) ask(t *rapid.T) {
	device, reach := m.device(t), slots.Reach(rapid.IntRange(0, 2).Draw(t, "reach"))
	number := int64(device[1] - '0') // a device has one task
	m.next++
	lease := strconv.Itoa(m.next)
	request := slots.Request{Device: device, Reach: reach, Wants: []slots.Want{{
		Lease: lease, TTL: time.Hour, Batch: number%3 + 1, Weight: int(number%2 + 1), Task: number + 1,
	}}}
	reserved := m.reserved(t)
	free := m.capacity - len(m.holds) - len(reserved)
	got, offers, err := m.Acquire(m.ctx, m.pool, offeringPace(), []slots.Request{request})
	if err != nil {
		t.Fatal(err)
	}
	mine := slices.Contains(reserved, device)
	switch a := got[0]; {
	case a.Status == slots.StatusAcquired:
		if len(m.holds) >= m.capacity || !mine && free < 1 {
			t.Fatalf("%s was granted a place beside %d of %d held and %v reserved", device, len(m.holds), m.capacity, reserved)
		}
		m.holds[lease] = device
	case mine && len(m.holds) < m.capacity:
		t.Fatalf("%s was offered a place, and was answered %+v", device, a)
	}
	m.after(t, offers)
}

func (m *offerMachine) release(t *rapid.T) {
	if len(m.holds) == 0 {
		t.Skip()
	}
	lease := rapid.SampledFrom(slices.Sorted(maps.Keys(m.holds))).Draw(t, "lease")
	for range rapid.IntRange(1, 2).Draw(t, "times") { // sent again, or late
		_, offers, err := m.Release(m.ctx, m.pool, offeringPace(), []string{lease})
		if err != nil {
			t.Fatal(err)
		}
		delete(m.holds, lease)
		m.after(t, offers)
	}
}

func (m *offerMachine) news(t *rapid.T) {
	var news []slots.News
	for range rapid.IntRange(0, 3).Draw(t, "pieces") {
		n := slots.News{
			What:   slots.What(rapid.IntRange(0, 4).Draw(t, "what")),
			Device: m.device(t), Batch: rapid.Int64Range(1, 3).Draw(t, "batch"),
		}
		if len(m.seen) > 0 && rapid.Bool().Draw(t, "of an offer") {
			o := rapid.SampledFrom(m.seen).Draw(t, "offer")
			n.Device, n.Offer = o.Device, o.ID
		}
		news = append(news, n)
	}
	line, err := m.HandOn(m.ctx, m.pool, offeringPace(), news)
	m.sawLine(t, line, err)
}

func (m *offerMachine) seats(t *rapid.T) {
	var seats []slots.Seat
	for range rapid.IntRange(1, 3).Draw(t, "seats") {
		device := m.device(t)
		number := int64(device[1] - '0')
		seats = append(seats, slots.Seat{
			Waiter: slots.Waiter{Device: device, Batch: number%3 + 1, Weight: int(number%2 + 1), Task: number + 1},
			Reach:  slots.Reach(rapid.IntRange(1, 2).Draw(t, "reach")),
		})
	}
	line, err := m.LineUp(m.ctx, m.pool, offeringPace(), seats)
	m.sawLine(t, line, err)
}

func (m *offerMachine) sawLine(t *rapid.T, line slots.Line, err error) {
	if err != nil || !line.Known || line.Held != len(m.holds) || line.Capacity != m.capacity || line.Reserved != len(m.reserved(t)) {
		t.Fatalf("line %+v, %v; %d held", line, err, len(m.holds))
	}
	m.after(t, line.Offers)
}

func (m *offerMachine) expireOne(t *rapid.T) {
	reserved := m.reserved(t)
	if len(reserved) == 0 {
		t.Skip()
	}
	device := rapid.SampledFrom(reserved).Draw(t, "device")
	if err := m.client.Do(m.ctx, "ZADD", m.key("offer"), "XX", 1, device).Err(); err != nil {
		t.Fatal(err)
	}
	m.moved = true
}

func (m *offerMachine) changeDue(t *rapid.T) {
	in := rapid.SampledFrom([]time.Duration{dueNow, dueSoon, dueLater}).Draw(t, "due")
	m.due(t, m.pool, m.device(t), in)
	m.moved = true
}

func (m *offerMachine) resize(t *rapid.T) {
	m.capacity = rapid.SampledFrom([]int{0, 1, 2, 3, 5}).Draw(t, "capacity")
	m.version++
	if _, err := m.Configure(m.ctx, m.pool, slots.Config{Capacity: m.capacity, Version: m.version}); err != nil {
		t.Fatal(err)
	}
	m.moved = true
}

func (m *offerMachine) lose(t *rapid.T) {
	key := rapid.SampledFrom([]string{"batch", "turn", "line", "due", "place", "offer", "offered", "unsent", "ready", "reach"}).Draw(t, "key")
	if err := m.client.Del(m.ctx, m.key(key)).Err(); err != nil {
		t.Fatal(err)
	}
	m.moved, m.drifted = true, key != "batch" // of which nothing is left, so that all are counted anew
	m.sawNothing(t)                           // mends what is left
}

// sawNothing runs a script that offers, twice: the first may have mended the line.
func (m *offerMachine) sawNothing(t *rapid.T) {
	for range 2 {
		line, err := m.HandOn(m.ctx, m.pool, offeringPace(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.after(t, line.Offers)
	}
}

func (m *offerMachine) wipe(t *rapid.T) {
	if err := m.Forget(m.ctx, m.pool); err != nil {
		t.Fatal(err)
	}
	for lease := range m.holds { // what may stay above a lowered capacity is left out
		if len(m.holds) > m.capacity {
			delete(m.holds, lease)
		}
	}
	m.seen = nil
	m.restore(t)
}

func (m *offerMachine) after(t *rapid.T, offers []slots.Offer) {
	m.moved = false
	m.seen = append(m.seen, offers...)
	reserved := m.reserved(t)
	for _, o := range offers {
		if !slices.Contains(reserved, o.Device) || o.Left <= 0 {
			t.Fatalf("offer %+v to who has none: %v", o, reserved)
		}
	}
}

func (m *offerMachine) read(t *rapid.T, command, name string, args ...any) []string {
	out, err := m.client.Do(m.ctx, append([]any{command, m.key(name)}, args...)...).StringSlice()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (m *offerMachine) reserved(t *rapid.T) []string { return m.read(t, "ZRANGE", "offer", 0, -1) }

func deviceOf(member string) string { return strings.SplitN(member, "|", 4)[3] }

// check is what holds after every action.
func (m *offerMachine) check(t *rapid.T) {
	snapshot := m.known(t)
	holds := map[string]string{}
	for _, l := range snapshot.Leases {
		holds[l.ID] = l.Device
	}
	if !maps.Equal(holds, m.holds) {
		t.Fatalf("held %v, want %v", holds, m.holds)
	}
	reserved, ready, line := m.reserved(t), m.read(t, "ZRANGE", "ready", 0, -1), m.read(t, "ZRANGE", "line", 0, -1)
	if len(snapshot.Reserved) != len(reserved) {
		t.Fatalf("snapshot %+v, want %v reserved", snapshot.Reserved, reserved)
	}
	for _, member := range ready {
		if !slices.Contains(line, member) || slices.Contains(reserved, deviceOf(member)) {
			t.Fatalf("%s is ready; reserved for %v, line %v", member, reserved, line)
		}
	}
	if m.moved {
		return
	}
	free := m.capacity - len(m.holds) - len(reserved)
	if free > 0 && len(ready) > 0 && (free > 1 || !m.someoneIsExpected(t, line)) {
		t.Fatalf("%d places of %d are free beside %v", free, m.capacity, ready)
	}
	m.checkCounts(t, snapshot)
}

// someoneIsExpected says whether one who polls was told to come about now.
func (m *offerMachine) someoneIsExpected(t *rapid.T, line []string) bool {
	now, err := m.client.Time(m.ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	reach := m.read(t, "HKEYS", "reach")
	for _, member := range line {
		device := deviceOf(member)
		due, err := m.client.ZScore(m.ctx, m.key("due"), device).Result()
		if err == nil && !slices.Contains(reach, device) && (due-float64(now.UnixMilli())) < float64((2*time.Minute).Milliseconds()) {
			return true
		}
	}
	return false
}

// checkCounts: what is offered counts for its batch as what is held does.
func (m *offerMachine) checkCounts(t *rapid.T, snapshot slots.Snapshot) {
	want := map[string]int{}
	for _, l := range snapshot.Leases {
		want[fmt.Sprintf("h%016d", l.Batch)]++
	}
	for _, o := range snapshot.Reserved {
		want[fmt.Sprintf("h%016d", o.Batch)]++
	}
	fields, err := m.client.HGetAll(m.ctx, m.key("batch")).Result()
	if err != nil {
		t.Fatal(err)
	}
	if m.drifted || fields["counted"] == "" {
		return
	}
	got := map[string]int{}
	for field, value := range fields {
		if strings.HasPrefix(field, "h") {
			got[field], _ = strconv.Atoi(value)
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("batches are counted as %v, want %v", got, want)
	}
}

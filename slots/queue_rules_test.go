package slots_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

// queueModel is the queue of a pool in plain lists, according to the header of lua/queue.lua.
type queueModel struct {
	now      int64 // ms
	capacity int
	holds    map[string]int64 // lease -> batch
	waiters  map[string]*modelWaiter
	times    map[int64]float64 // virtual time of each batch
	grants   int
	time     float64 // virtual time of the batch of the latest grant
	ahead    float64 // ms by which the kept slots exceed their share of the slot-time
	keptAt   int64   // time (ms) for which ahead was computed
	vain     int
	percent  int            // percentage of the capacity for which urgent batches have precedence; 0 until an urgent task is requested
	lane     map[int64]bool // the urgent batches that had a grant or a waiter
	told     []string       // offers to send of the current call
}

type modelWaiter struct {
	slots.Want

	device        string
	class         string // T, O or P
	reach         int
	foreseen      int
	due, ends     int64
	timer, made   int64
	offered, sent bool
	kept, owed    bool
	id            int64 // id of the offer, after the test has received the offer
}

func newQueueModel(capacity int) *queueModel {
	return &queueModel{capacity: capacity, holds: map[string]int64{}, waiters: map[string]*modelWaiter{}, times: map[int64]float64{}, lane: map[int64]bool{}}
}

func (m *queueModel) reserved() (n int) {
	for _, w := range m.waiters {
		if w.offered {
			n++
		}
	}
	return n
}

func (m *queueModel) held(batch int64) (n int) {
	for _, b := range m.holds {
		if b == batch {
			n++
		}
	}
	for _, w := range m.waiters {
		if w.offered && w.Batch == batch {
			n++
		}
	}
	return n
}

func (m *queueModel) waits(batch int64) bool {
	for _, w := range m.waiters {
		if w.Batch == batch {
			return true
		}
	}
	return false
}

// virtual returns the virtual time of a batch. A batch without waiters gets at least the time of
// the latest grant.
func (m *queueModel) virtual(batch int64) float64 {
	if m.waits(batch) {
		return m.times[batch]
	}
	return max(m.times[batch], m.time)
}

// laneNow returns the current state of the lane.
func (m *queueModel) laneNow() (lane slots.Lane) {
	for batch := range m.lane {
		lane.Held += m.held(batch)
	}
	for _, w := range m.waiters {
		lane.Waiting += min(w.Lane, 1)
	}
	lane.Room = int(math.Ceil(float64(m.capacity*m.percent)/100)) - lane.Held
	return lane
}

// first reports whether a task has precedence because it is urgent.
func (m *queueModel) first(w slots.Want) bool { return w.Lane > 0 && m.laneNow().Room > 0 }

// before compares two batches by the order.
func (m *queueModel) before(a, b slots.Want) int {
	last := map[bool]int{true: 0, false: 1}
	return cmp.Or(cmp.Compare(last[m.first(a)], last[m.first(b)]), cmp.Compare(m.held(a.Batch)*b.Weight, m.held(b.Batch)*a.Weight),
		cmp.Compare(m.virtual(a.Batch), m.virtual(b.Batch)), cmp.Compare(a.Batch, b.Batch))
}

func (m *queueModel) best(wants []slots.Want) int {
	best := 0
	for n, w := range wants {
		if cmp.Or(m.before(w, wants[best]), inBatch(w, wants[best])) < 0 {
			best = n
		}
	}
	return best
}

// inOrder returns the waiters of a class, sorted by the order.
func (m *queueModel) inOrder(class string) []*modelWaiter {
	all := slices.DeleteFunc(slices.Collect(maps.Values(m.waiters)), func(w *modelWaiter) bool { return w.class != class })
	slices.SortFunc(all, func(a, b *modelWaiter) int {
		return cmp.Or(m.before(a.Want, b.Want), inBatch(a.Want, b.Want), strings.Compare(a.device, b.device))
	})
	return all
}

// inTurn returns the pollers that are owed a slot, sorted by their foreseen grants.
func (m *queueModel) inTurn() []*modelWaiter {
	all := slices.DeleteFunc(slices.Collect(maps.Values(m.waiters)), func(w *modelWaiter) bool { return !w.owed })
	slices.SortFunc(all, func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.foreseen, b.foreseen), strings.Compare(a.device, b.device))
	})
	return all
}

// begin does the first part of each call: it handles expired timers, the earliest first.
func (m *queueModel) begin(missed bool) {
	m.told = nil
	all := slices.SortedFunc(maps.Values(m.waiters), func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.timer, b.timer), strings.Compare(a.device, b.device))
	})
	for _, w := range all {
		over := w.timer <= m.now
		also := missed && w.timer <= m.now+500 && w.offered && !w.sent && w.reach == 2 && w.made <= m.now-500
		switch {
		case !over && !also:
		case !w.offered:
			m.leave(w)
		case w.ends > m.now:
			m.tell(w)
		default:
			if !w.kept {
				m.vain++
			}
			m.away(w)
		}
	}
}

func (m *queueModel) tell(w *modelWaiter) {
	w.timer = min(w.ends, m.now+500)
	m.told = append(m.told, fmt.Sprintf("%s %d %d for %s", w.device, w.Batch, w.Task, time.Duration(w.ends-m.now)*time.Millisecond))
}

func (m *queueModel) wait(w *modelWaiter, class string) {
	if w.kept {
		m.owe(-float64(max(w.ends-m.now, 0)))
	}
	w.class, w.offered, w.sent, w.kept = class, false, false, false
	w.timer = w.due + queuePace.Period.Milliseconds() + 2000
}

func (m *queueModel) away(w *modelWaiter) {
	w.owed = w.owed && !w.offered
	m.wait(w, "P")
}

func (m *queueModel) leave(w *modelWaiter) {
	m.wait(w, "P")
	delete(m.waiters, w.device)
}

// owe adds ms of kept slot-time to ahead. The factor 20 allows a twentieth of all slot-time.
func (m *queueModel) owe(ms float64) {
	m.settle()
	m.ahead += ms * 20 / float64(max(m.capacity, 1))
}

func (m *queueModel) settle() {
	m.ahead, m.keptAt = max(m.ahead-float64(m.now-m.keptAt), 0), m.now
}

func (m *queueModel) hear(n slots.Update) {
	for _, w := range m.waiters {
		switch {
		case n.Kind == slots.BatchLeft && w.Batch == n.Batch:
			m.leave(w)
		case n.Kind == slots.BatchLeft || w.device != n.Device || n.Offer != 0 && (!w.offered || n.Offer != w.id):
		case n.Kind == slots.OfferSent:
			w.sent, w.timer = true, w.ends
		case n.Kind == slots.WaiterAway:
			m.away(w)
		case n.Kind == slots.WaiterLeft:
			m.leave(w)
		}
	}
}

func (m *queueModel) acquire(r slots.Request) slots.Acquisition {
	for _, w := range r.Wants {
		m.percent = max(m.percent, w.Lane)
	}
	n, left := m.best(r.Wants), m.capacity-len(m.holds)-m.reserved()
	w, mine := m.waiters[r.Device], -1
	if w != nil {
		mine = slices.IndexFunc(r.Wants, func(o slots.Want) bool { return o.Batch == w.Batch && inBatch(o, w.Want) == 0 })
	}
	switch {
	case w != nil && w.offered && mine >= 0 && !m.first(r.Wants[n]):
		n, left = mine, m.capacity-len(m.holds)
	case w != nil && w.offered && (w.kept || m.first(r.Wants[n])):
		left = m.capacity - len(m.holds)
	}
	want := r.Wants[n]
	if left < 1 {
		after, position := m.join(r.Device, want, int(r.Reach), r.Chance)
		return slots.Acquisition{Status: slots.StatusFull, Position: position, After: time.Duration(after) * time.Millisecond}
	}
	began := m.virtual(want.Batch)
	if w != nil {
		if w.offered && !w.kept {
			m.vain = 0
		}
		m.leave(w)
	}
	m.time = max(began, m.time)
	m.times[want.Batch] = m.time + math.Floor(1e6/float64(want.Weight))
	m.grants++
	m.holds[want.Lease] = want.Batch
	m.know(want)
	return slots.Acquisition{Status: slots.StatusAcquired, Want: n}
}

// know records that the batch of w is urgent, if it is.
func (m *queueModel) know(w slots.Want) {
	if w.Lane > 0 {
		m.lane[w.Batch], m.percent = true, w.Lane
	}
}

// position returns the expected number of grants until the task gets a slot.
func (m *queueModel) position(device string, want slots.Want) int {
	rank, weights := 1.0, map[int64]int{want.Batch: want.Weight}
	for _, w := range m.waiters {
		weights[w.Batch] = w.Weight
		if w.Batch == want.Batch && cmp.Or(inBatch(w.Want, want), strings.Compare(w.device, device)) < 0 {
			rank++
		}
	}
	all, weight := 0.0, float64(want.Weight)
	for _, w := range weights {
		all += float64(w)
	}
	lane := m.laneNow()
	lead := max(float64(m.capacity)*weight/all-float64(m.held(want.Batch)), 0)
	if want.Lane > 0 {
		lead = max(lead, float64(lane.Room))
	}
	if rank > lead {
		rank = math.Floor(lead + (rank-lead)*all/weight)
	}
	if want.Lane == 0 {
		rank += float64(max(min(lane.Room, lane.Waiting), 0))
	}
	return int(max(min(rank, float64(len(m.waiters)+1)), 1))
}

func (m *queueModel) join(device string, want slots.Want, reach int, chance float64) (after int64, position int) {
	w, earlier := m.waiters[device], math.MaxInt
	if w != nil && reach == 0 {
		earlier = w.foreseen
	}
	if w != nil && (w.Batch != want.Batch || inBatch(w.Want, want) != 0) {
		m.leave(w)
		w = nil
	}
	if !m.waits(want.Batch) {
		m.times[want.Batch] = m.virtual(want.Batch)
	}
	position = m.position(device, want)
	foreseen, first := m.grants+position, -1
	if reach == 0 && m.first(want) && position <= m.laneNow().Room {
		first = position - 1
	}
	if w == nil {
		w = &modelWaiter{device: device, Want: want, foreseen: foreseen}
	}
	kept := w.kept
	w.foreseen = min(foreseen, earlier)
	w.reach = reach
	w.owed = reach == 0 && m.grants >= w.foreseen+m.capacity
	m.waiters[device] = w
	wait, position := m.sleep(w, chance, first)
	after = max(int64(math.Floor(wait)), 1000)
	w.due, w.kept = m.now+after, kept
	w.owed = w.owed && !w.offered
	m.wait(w, map[bool]string{true: "T", false: "P"}[reach > 0])
	m.know(want)
	return after, position
}

// sleep returns the time until the waiter is to ask again, and its position. first is the rank of
// an urgent poller that has precedence; -1 means any other waiter.
func (m *queueModel) sleep(w *modelWaiter, chance float64, first int) (wait float64, position int) {
	const period, hold = 30_000, 8000
	ahead, interval, early := w.foreseen-m.grants, hold/float64(max(m.capacity, 1)), 0.9+chance/10
	rank := slices.Index(m.inTurn(), w)
	if first >= 0 {
		rank = first
	}
	switch {
	case m.capacity == 0:
		return period, max(ahead, 1)
	case rank >= 0:
		soon := 1000 * (1 + chance/4 + float64(rank)/float64(max(m.capacity/20, 3))/4)
		return max(min(float64(rank)*interval, period)*early, min(soon, 2000)), rank + 1
	}
	grants := ahead
	if ahead <= 0 {
		grants += m.capacity
	}
	if w.reach > 0 {
		return min(float64(grants)*interval+period, 8*period) * early, max(ahead, 1)
	}
	return min(float64(grants)*interval, 3*period) * early, max(ahead, 1)
}

// end offers the free slots.
func (m *queueModel) end() {
	for m.capacity-len(m.holds)-m.reserved() > 0 {
		told := m.inOrder("T")
		w := m.toKeep(told)
		if w == nil {
			if len(told) == 0 {
				return
			}
			w = told[0]
			w.ends = m.now + 3000
			if m.vain >= 10 {
				w.ends = m.now + 500
			}
		}
		w.class, w.offered, w.made = "O", true, m.now
		if w.kept {
			w.sent, w.timer = true, w.ends
		} else {
			m.tell(w)
		}
	}
}

// lacks reports whether the batch of w, with one slot more, would still hold less than its share.
func (m *queueModel) lacks(w *modelWaiter) bool {
	weights := map[int64]int{}
	for _, o := range m.waiters {
		weights[o.Batch] = o.Weight
	}
	all := 0
	for _, weight := range weights {
		all += weight
	}
	return (m.held(w.Batch)+1)*all < m.capacity*w.Weight
}

// toKeep returns a poller that is expected soon and for which a slot is kept, or nil. The poller is
// owed a slot, or its batch is urgent with precedence, or its batch lacks slots.
func (m *queueModel) toKeep(told []*modelWaiter) (found *modelWaiter) {
	m.settle()
	if m.ahead > 200_000/float64(m.capacity) {
		return nil
	}
	window := max(min(2*8000/float64(m.capacity), 2000), 20)
	all := slices.SortedFunc(maps.Values(m.waiters), func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.due, b.due), strings.Compare(a.device, b.device))
	})
	owed := m.inTurn()
	share := func(w *modelWaiter) float64 {
		if m.first(w.Want) {
			return float64(m.held(w.Batch))/float64(w.Weight) - 20_000
		}
		return float64(m.held(w.Batch)) / float64(w.Weight)
	}
	for _, w := range all {
		about := w.due+1000 >= m.now && float64(w.due) <= float64(m.now)+window
		if len(told) > 0 && share(w) > share(told[0]) {
			continue
		}
		rank := slices.Index(owed, w)
		owes := rank >= 0 && rank < max(m.capacity/20, 3)
		if about && w.class == "P" && (m.first(w.Want) || owes || m.lacks(w)) && (found == nil || share(w) < share(found)) {
			found = w
		}
	}
	if found != nil {
		found.ends, found.kept = max(found.due+1000, m.now+1), true
		m.owe(float64(found.ends - m.now))
	}
	return found
}

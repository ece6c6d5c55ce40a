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

// queueModel is a model of a pool's queue that uses plain lists. It implements the rules in the headers of lua/batch_order.lua and
// lua/queue.lua.
type queueModel struct {
	now             int64 // ms
	capacity        int
	batchByLease    map[string]int64 // lease -> batch
	waiters         map[string]*modelWaiter
	virtualTimes    map[int64]float64 // virtual time of each batch
	grants          int
	lastVirtualTime float64 // virtual time of the batch of the latest grant
	keptExcess      float64 // ms by which the time of kept slots exceeds its allowed share of the slot-time
	excessAt        int64   // time (ms) for which keptExcess was computed
	unusedOffers    int
	lanePercent     int            // the urgent share, as a percentage of the capacity; 0 until an urgent task is requested
	urgentBatches   map[int64]bool // the urgent batches that had a grant or a waiter
	offersToSend    []string       // offers that the current call must return, because they are to be sent
	closed          *closedQueue   // nil before the first call that changes the queue
}

// closedQueue contains two numbers that the queue stores at the end of each call that changes the queue.
type closedQueue struct{ capacity, reserved int }

type modelWaiter struct {
	slots.Want

	device             string
	class              string // class of the waiter: T, O or P (queue.lua)
	reach              int
	expectedGrant      int
	dueAt, offerEnds   int64
	timerAt, offeredAt int64
	isOffered, sent    bool
	kept, owed         bool
	id                 int64 // id of the offer; 0 until the test has received the offer
}

func newQueueModel(capacity int) *queueModel {
	return &queueModel{capacity: capacity, batchByLease: map[string]int64{}, waiters: map[string]*modelWaiter{}, virtualTimes: map[int64]float64{}, urgentBatches: map[int64]bool{}}
}

func (m *queueModel) countReserved() (n int) {
	for _, w := range m.waiters {
		if w.isOffered {
			n++
		}
	}
	return n
}

func (m *queueModel) countHeld(batch int64) (n int) {
	for _, b := range m.batchByLease {
		if b == batch {
			n++
		}
	}
	for _, w := range m.waiters {
		if w.isOffered && w.Batch == batch {
			n++
		}
	}
	return n
}

func (m *queueModel) hasWaiters(batch int64) bool {
	for _, w := range m.waiters {
		if w.Batch == batch {
			return true
		}
	}
	return false
}

// virtualTime returns the virtual time of a batch (see lua/batch_order.lua). If the batch has no waiters, the result is at least the
// virtual time of the batch that had the latest grant.
func (m *queueModel) virtualTime(batch int64) float64 {
	if m.hasWaiters(batch) {
		return m.virtualTimes[batch]
	}
	return max(m.virtualTimes[batch], m.lastVirtualTime)
}

// currentLane returns the state of the urgent lane: how many slots urgent batches hold, how many urgent tasks wait, and how many more slots
// the urgent batches may get before all others.
func (m *queueModel) currentLane() (lane slots.UrgentLane) {
	for batch := range m.urgentBatches {
		lane.Held += m.countHeld(batch)
	}
	for _, w := range m.waiters {
		lane.Waiting += min(w.LanePercent, 1)
	}
	lane.Room = int(math.Ceil(float64(m.capacity*m.lanePercent)/100)) - lane.Held
	return lane
}

// hasPrecedence reports whether the task w comes before all normal tasks. This is so if w is urgent and the urgent batches hold less than
// their share.
func (m *queueModel) hasPrecedence(w slots.Want) bool {
	return w.LanePercent > 0 && m.currentLane().Room > 0
}

// compareWants compares the batches of the tasks a and b. A negative result means that the batch of a gets a slot
// first.
func (m *queueModel) compareWants(a, b slots.Want) int {
	last := map[bool]int{true: 0, false: 1}
	return cmp.Or(cmp.Compare(last[m.hasPrecedence(a)], last[m.hasPrecedence(b)]), cmp.Compare(m.countHeld(a.Batch)*b.Weight, m.countHeld(b.Batch)*a.Weight),
		cmp.Compare(m.virtualTime(a.Batch), m.virtualTime(b.Batch)), cmp.Compare(a.Batch, b.Batch))
}

func (m *queueModel) bestWant(wants []slots.Want) int {
	best := 0
	for n, w := range wants {
		if cmp.Or(m.compareWants(w, wants[best]), compareInBatch(w, wants[best])) < 0 {
			best = n
		}
	}
	return best
}

// waitersInOrder returns the waiters of a class (T, O or P), in the order in which they get slots.
func (m *queueModel) waitersInOrder(class string) []*modelWaiter {
	all := slices.DeleteFunc(slices.Collect(maps.Values(m.waiters)), func(w *modelWaiter) bool { return w.class != class })
	slices.SortFunc(all, func(a, b *modelWaiter) int {
		return cmp.Or(m.compareWants(a.Want, b.Want), compareInBatch(a.Want, b.Want), strings.Compare(a.device, b.device))
	})
	return all
}

// owedWaiters returns the polling devices that are owed a slot. They are sorted by expectedGrant, the number of the grant that was foreseen
// for the device.
func (m *queueModel) owedWaiters() []*modelWaiter {
	all := slices.DeleteFunc(slices.Collect(maps.Values(m.waiters)), func(w *modelWaiter) bool { return !w.owed })
	slices.SortFunc(all, func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.expectedGrant, b.expectedGrant), strings.Compare(a.device, b.device))
	})
	return all
}

// handleTimers does the first part of each call: it handles the timers that have expired, the earliest timer first. If missed is true, it also
// returns the unsent offers to parked reports that were made at least 500 ms ago.
func (m *queueModel) handleTimers(missed bool) {
	m.offersToSend = nil
	all := slices.SortedFunc(maps.Values(m.waiters), func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.timerAt, b.timerAt), strings.Compare(a.device, b.device))
	})
	for _, w := range all {
		over := w.timerAt <= m.now
		also := missed && w.timerAt <= m.now+500 && w.isOffered && !w.sent && w.reach == 2 && w.offeredAt <= m.now-500
		switch {
		case !over && !also:
		case !w.isOffered:
			m.removeWaiter(w)
		case w.offerEnds > m.now:
			m.sendOffer(w)
		default:
			if !w.kept {
				m.unusedOffers++
			}
			m.markAway(w)
		}
	}
}

func (m *queueModel) sendOffer(w *modelWaiter) {
	w.timerAt = min(w.offerEnds, m.now+500)
	m.offersToSend = append(m.offersToSend, fmt.Sprintf("%s %d %d for %s", w.device, w.Batch, w.Task, time.Duration(w.offerEnds-m.now)*time.Millisecond))
}

func (m *queueModel) resetWaiter(w *modelWaiter, class string) {
	if w.kept {
		m.addKeptTime(-float64(max(w.offerEnds-m.now, 0)))
	}
	w.class, w.isOffered, w.sent, w.kept = class, false, false, false
	w.timerAt = w.dueAt + queuePace.ReportPeriod.Milliseconds() + 2000
}

func (m *queueModel) markAway(w *modelWaiter) {
	w.owed = w.owed && !w.isOffered
	m.resetWaiter(w, "P")
}

func (m *queueModel) removeWaiter(w *modelWaiter) {
	m.resetWaiter(w, "P")
	delete(m.waiters, w.device)
}

// addKeptTime records that slots were kept for pollers for ms milliseconds of slot-time. Kept slots may use a twentieth of all slot-time,
// so it adds 20 times this time, divided by the capacity, to keptExcess.
func (m *queueModel) addKeptTime(ms float64) {
	m.decayKeptExcess()
	m.keptExcess += ms * 20 / float64(max(m.capacity, 1))
}

func (m *queueModel) decayKeptExcess() {
	m.keptExcess, m.excessAt = max(m.keptExcess-float64(m.now-m.excessAt), 0), m.now
}

func (m *queueModel) applyUpdate(n slots.Update) {
	for _, w := range m.waiters {
		switch {
		case n.Kind == slots.BatchLeft && w.Batch == n.Batch:
			m.removeWaiter(w)
		case n.Kind == slots.BatchLeft || w.device != n.Device || n.Offer != 0 && (!w.isOffered || n.Offer != w.id):
		case n.Kind == slots.OfferSent:
			w.sent, w.timerAt = true, w.offerEnds
		case n.Kind == slots.WaiterPassedOver:
			m.markAway(w)
		case n.Kind == slots.WaiterLeft:
			m.removeWaiter(w)
		}
	}
}

func (m *queueModel) acquireSlot(r slots.Request) slots.Acquisition {
	for _, w := range r.Wants {
		m.lanePercent = max(m.lanePercent, w.LanePercent)
	}
	n, left := m.bestWant(r.Wants), m.capacity-len(m.batchByLease)-m.countReserved()
	w, mine := m.waiters[r.Device], -1
	if w != nil {
		mine = slices.IndexFunc(r.Wants, func(o slots.Want) bool { return o.Batch == w.Batch && compareInBatch(o, w.Want) == 0 })
	}
	switch {
	case w != nil && w.isOffered && mine >= 0 && !m.hasPrecedence(r.Wants[n]):
		n, left = mine, m.capacity-len(m.batchByLease)
	case w != nil && w.isOffered && (w.kept || m.hasPrecedence(r.Wants[n])):
		left = m.capacity - len(m.batchByLease)
	}
	want := r.Wants[n]
	if left < 1 {
		after, position := m.joinQueue(r.Device, want, int(r.Reach), r.Chance)
		return slots.Acquisition{Status: slots.StatusFull, Position: position, AskAfter: time.Duration(after) * time.Millisecond}
	}
	began := m.virtualTime(want.Batch)
	if w != nil {
		if w.isOffered && !w.kept {
			m.unusedOffers = 0
		}
		m.removeWaiter(w)
	}
	m.lastVirtualTime = max(began, m.lastVirtualTime)
	m.virtualTimes[want.Batch] = m.lastVirtualTime + math.Floor(1e6/float64(want.Weight))
	m.grants++
	m.batchByLease[want.Lease] = want.Batch
	m.recordUrgent(want)
	return slots.Acquisition{Status: slots.StatusAcquired, WantIndex: n}
}

// recordUrgent records the batch of w as urgent if w is an urgent task.
func (m *queueModel) recordUrgent(w slots.Want) {
	if w.LanePercent > 0 {
		m.urgentBatches[w.Batch], m.lanePercent = true, w.LanePercent
	}
}

// expectedPosition returns the position of the task: the number of grants until it is expected to get a slot.
func (m *queueModel) expectedPosition(device string, want slots.Want) int {
	rank, weights := 1.0, map[int64]int{want.Batch: want.Weight}
	for _, w := range m.waiters {
		weights[w.Batch] = w.Weight
		if w.Batch == want.Batch && cmp.Or(compareInBatch(w.Want, want), strings.Compare(w.device, device)) < 0 {
			rank++
		}
	}
	all, weight := 0.0, float64(want.Weight)
	for _, w := range weights {
		all += float64(w)
	}
	lane := m.currentLane()
	lead := max(float64(m.capacity)*weight/all-float64(m.countHeld(want.Batch)), 0)
	if want.LanePercent > 0 {
		lead = max(lead, float64(lane.Room))
	}
	if rank > lead {
		rank = math.Floor(lead + (rank-lead)*all/weight)
	}
	if want.LanePercent == 0 {
		rank += float64(max(min(lane.Room, lane.Waiting), 0))
	}
	return int(max(min(rank, float64(len(m.waiters)+1)), 1))
}

func (m *queueModel) joinQueue(device string, want slots.Want, reach int, chance float64) (after int64, position int) {
	w, earlier := m.waiters[device], math.MaxInt
	if w != nil && reach == 0 {
		earlier = w.expectedGrant
	}
	if w != nil && (w.Batch != want.Batch || compareInBatch(w.Want, want) != 0) {
		m.removeWaiter(w)
		w = nil
	}
	if !m.hasWaiters(want.Batch) {
		m.virtualTimes[want.Batch] = m.virtualTime(want.Batch)
	}
	position = m.expectedPosition(device, want)
	foreseen, first := m.grants+position, -1
	if reach == 0 && m.hasPrecedence(want) && position <= m.currentLane().Room {
		first = position - 1
	}
	if w == nil {
		w = &modelWaiter{device: device, Want: want, expectedGrant: foreseen}
	}
	kept := w.kept
	w.expectedGrant = min(foreseen, earlier)
	w.reach = reach
	w.owed = reach == 0 && m.grants >= w.expectedGrant+m.capacity
	m.waiters[device] = w
	wait, position := m.pollDelay(w, chance, first)
	after = max(int64(math.Floor(wait)), 1000)
	w.dueAt, w.kept = m.now+after, kept
	w.owed = w.owed && !w.isOffered
	m.resetWaiter(w, map[bool]string{true: "T", false: "P"}[reach > 0])
	m.recordUrgent(want)
	return after, position
}

// refreshWaiter does what Refresh must do for the report of one device. It returns the time (ms) until the device is to ask again, or 0 if
// the device must be served (acquireSlot).
func (m *queueModel) refreshWaiter(r slots.WaiterRefresh) int64 {
	w := m.waiters[r.Device]
	if w == nil || m.closed == nil || m.capacity-len(m.batchByLease) > m.closed.reserved || w.reach != int(r.Reach) {
		return 0
	}
	ahead := w.expectedGrant - m.grants
	switch {
	case w.class != map[bool]string{true: "T", false: "P"}[w.reach > 0]:
		return 0
	case w.reach > 0 && ahead <= 0:
		same := slices.DeleteFunc(m.waitersInOrder("T"), func(o *modelWaiter) bool { return o.Batch != w.Batch })
		ahead = slices.Index(same, w) + 1
	case w.reach == 0 && m.closed.capacity > 0 && ahead+m.closed.capacity <= 0:
		rank := slices.Index(m.owedWaiters(), w)
		if rank < max(m.closed.capacity/20, 3) {
			return 0
		}
		return m.moveDueTime(w, owedDelay(rank, m.closed.capacity, r.Chance))
	}
	return m.moveDueTime(w, steadyDelay(w, ahead, m.closed.capacity, r.Chance))
}

// moveDueTime makes the next report of a waiter due after the time wait (ms), but not before 1 s has passed. It returns the time until this
// report.
func (m *queueModel) moveDueTime(w *modelWaiter, wait float64) int64 {
	after := max(int64(math.Floor(wait)), 1000)
	w.dueAt = m.now + after
	m.resetWaiter(w, w.class)
	return after
}

// steadyDelay returns the time until a waiter without a rank is to ask again. ahead is the number of grants until the grant that was
// foreseen for this waiter.
func steadyDelay(w *modelWaiter, ahead, capacity int, chance float64) float64 {
	const period, hold = 30_000, 8000
	if capacity == 0 {
		return period
	}
	grants, early := ahead, 0.9+chance/10
	if ahead <= 0 {
		grants += capacity
	}
	wait := float64(grants) * (hold / float64(capacity))
	if w.reach > 0 {
		return min(wait+period, 8*period) * early
	}
	return min(wait, 3*period) * early
}

// owedDelay returns the time until the next request of a poller that is owed a slot. rank is the rank of this poller among all such
// pollers.
func owedDelay(rank, capacity int, chance float64) float64 {
	return min(float64(rank)*(8000/float64(capacity)), 30_000) * (0.9 + chance/10)
}

// pollDelay returns the time until the waiter is to ask again, and the position of the waiter. For an urgent poller that comes before all normal
// tasks, urgentRank is its rank among such pollers. For any other waiter, urgentRank is -1.
func (m *queueModel) pollDelay(w *modelWaiter, chance float64, urgentRank int) (wait float64, position int) {
	ahead := w.expectedGrant - m.grants
	rank := slices.Index(m.owedWaiters(), w)
	if urgentRank >= 0 {
		rank = urgentRank
	}
	if rank < 0 || m.capacity == 0 {
		return steadyDelay(w, ahead, m.capacity, chance), max(ahead, 1)
	}
	soon := 1000 * (1 + chance/4 + float64(rank)/float64(max(m.capacity/20, 3))/4)
	return max(owedDelay(rank, m.capacity, chance), min(soon, 2000)), rank + 1
}

// offerFreeSlots offers each free slot to a waiter that can be notified, or keeps it for a poller.
func (m *queueModel) offerFreeSlots() {
	for m.capacity-len(m.batchByLease)-m.countReserved() > 0 {
		told := m.waitersInOrder("T")
		w := m.pollerToKeepFor(told)
		if w == nil {
			if len(told) == 0 {
				return
			}
			w = told[0]
			w.offerEnds = m.now + 3000
			if m.unusedOffers >= 10 {
				w.offerEnds = m.now + 500
			}
		}
		w.class, w.isOffered, w.offeredAt, w.id = "O", true, m.now, 0 // the test never receives the id of a kept offer
		if w.kept {
			w.sent, w.timerAt = true, w.offerEnds
		} else {
			m.sendOffer(w)
		}
	}
}

// isBelowShare reports whether the batch of w would still hold less than its share of the pool after one more
// grant.
func (m *queueModel) isBelowShare(w *modelWaiter) bool {
	weights := map[int64]int{}
	for _, o := range m.waiters {
		weights[o.Batch] = o.Weight
	}
	all := 0
	for _, weight := range weights {
		all += weight
	}
	return (m.countHeld(w.Batch)+1)*all < m.capacity*w.Weight
}

// pollerToKeepFor returns the polling device for which the next free slot is kept, or nil. The next report of the device must be expected
// soon. In addition, one of these must be true: the device is owed a slot; its batch is urgent and the urgent batches hold less than their
// share; or its batch holds less than its share.
func (m *queueModel) pollerToKeepFor(notifiable []*modelWaiter) (found *modelWaiter) {
	m.decayKeptExcess()
	if m.keptExcess > 200_000/float64(m.capacity) {
		return nil
	}
	window := max(min(2*8000/float64(m.capacity), 2000), 20)
	all := slices.SortedFunc(maps.Values(m.waiters), func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.dueAt, b.dueAt), strings.Compare(a.device, b.device))
	})
	owed := m.owedWaiters()
	share := func(w *modelWaiter) float64 {
		if m.hasPrecedence(w.Want) {
			return float64(m.countHeld(w.Batch))/float64(w.Weight) - 20_000
		}
		return float64(m.countHeld(w.Batch)) / float64(w.Weight)
	}
	for _, w := range all {
		about := w.dueAt+1000 >= m.now && float64(w.dueAt) <= float64(m.now)+window
		if len(notifiable) > 0 && share(w) > share(notifiable[0]) {
			continue
		}
		rank := slices.Index(owed, w)
		owes := rank >= 0 && rank < max(m.capacity/20, 3)
		if about && w.class == "P" && (m.hasPrecedence(w.Want) || owes || m.isBelowShare(w)) && (found == nil || share(w) < share(found)) {
			found = w
		}
	}
	if found != nil {
		found.offerEnds, found.kept = max(found.dueAt+1000, m.now+1), true
		m.addKeptTime(float64(found.offerEnds - m.now))
	}
	return found
}

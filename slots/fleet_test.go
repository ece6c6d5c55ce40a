package slots_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// simulatedFleet simulates devices that share a pool on a simulated clock. Each device has a task. A device that can be notified asks for a
// slot when a slot is offered to it. Every other device (a poller) asks at the time that the previous reply named. If a device already
// waits, its request goes to Refresh first, and to Serve only if Refresh does not accept it.
type simulatedFleet struct {
	*redisSemaphore

	t      *testing.T
	pool   string
	pace   slots.Pace
	random *rand.Rand

	now, lastPass time.Duration
	visits        visits
	devices       map[string]*simulatedDevice
	capacity      int
	grants        int
	requestCount  int
	refreshCount  int // number of requests that were refreshed
	grantsAt      []time.Duration
	endsAt        []time.Duration // for each element of grantsAt: the time at which the slot becomes free
}

// passInterval is the interval of the pass "hand on", which offers free slots.
const passInterval = 500 * time.Millisecond

type simulatedDevice struct {
	name                    string
	want                    slots.Want
	reach                   slots.Reach
	firstAskedAt, grantedAt time.Duration
	grantsAtAsk             int
	grantsUntilGrant        int
	requestCount            int
	done, isComing, paused  bool
	tasksLeft               int // number of tasks that follow this one
}

// visit is a planned event of a simulated device: it asks for a slot, or its task ends.
type visit struct {
	at       time.Duration
	device   *simulatedDevice
	endsTask bool
}

type visits []visit

func (v visits) Len() int           { return len(v) }
func (v visits) Less(i, j int) bool { return v[i].at < v[j].at }
func (v visits) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *visits) Push(x any)        { *v = append(*v, x.(visit)) } //nolint:errcheck // nothing else is pushed
func (v *visits) Pop() any {
	last := len(*v) - 1
	x := (*v)[last]
	*v = (*v)[:last]
	return x
}

const fleetStartMS = 1_800_000_000_000 // start of the simulated clock in ms

func newFleet(t *testing.T, capacity int, hold time.Duration) *simulatedFleet {
	t.Helper()
	s := newRedisSemaphore(t)
	f := &simulatedFleet{
		redisSemaphore: s, t: t, pool: t.Name(), capacity: capacity, devices: map[string]*simulatedDevice{}, random: rand.New(rand.NewPCG(1, 2)),
		pace: slots.Pace{MeanHold: hold, MinWait: time.Second, ReportPeriod: 30 * time.Second, OfferTTL: 3 * time.Second, LongestSleep: 10 * time.Minute},
	}
	s.Semaphore = slots.NewOnClock(s.client)
	f.setClock(0)
	s.restore(t, f.pool, slots.Config{Capacity: capacity, Version: 1})
	return f
}

// setClock sets the simulated clock of the pool.
func (f *simulatedFleet) setClock(now time.Duration) {
	f.now = now
	must.Succeed(f.t, f.client.Set(f.t.Context(), slots.ClockKey(f.pool), fleetStartMS+now.Milliseconds(), 0).Err())
}

// addDevices adds n devices of a batch. Each device asks for the first time at a random time between the times at and at+spread.
func (f *simulatedFleet) addDevices(n int, batch int64, reach slots.Reach, at, spread time.Duration) (added []*simulatedDevice) {
	for range n {
		task := int64(len(f.devices) + 1)
		m := &simulatedDevice{name: fmt.Sprintf("d%d", task), reach: reach, want: slots.Want{Lease: fmt.Sprint(task), TTL: time.Hour, Batch: batch, Task: task}}
		f.devices[m.name] = m
		heap.Push(&f.visits, visit{at: at + time.Duration(f.random.Float64()*float64(spread)), device: m})
		added = append(added, m)
	}
	return added
}

// joinDevices adds n devices that can be notified to the queue of the pool. The devices have not requested a slot.
func (f *simulatedFleet) joinDevices(n int, batch int64) {
	var joiners []slots.Joiner
	for range n {
		task := int64(len(f.devices) + 1)
		m := &simulatedDevice{name: fmt.Sprintf("d%d", task), reach: slots.ReachPush, want: slots.Want{Lease: fmt.Sprint(task), TTL: time.Hour, Batch: batch, Task: task}}
		f.devices[m.name] = m
		joiners = append(joiners, slots.Joiner{Device: m.name, Want: slots.Want{Batch: batch, Task: task}, Reach: m.reach})
	}
	line, err := f.Join(f.t.Context(), f.pool, f.pace, joiners)
	must.Succeed(f.t, err)
	f.wakeOffered(line.Offers)
}

// wakeOffered makes each device that has one of these offers ask for a slot soon.
func (f *simulatedFleet) wakeOffered(offers []slots.Offer) {
	for _, o := range offers {
		m := f.devices[o.Device]
		if m == nil || m.done || m.isComing {
			continue
		}
		m.isComing = true
		heap.Push(&f.visits, visit{at: f.now + 20*time.Millisecond, device: m})
	}
}

// runUntil processes the visits (planned events) of the devices in the order of their times. It stops at the time in the parameter until,
// or as soon as the function stop returns true.
func (f *simulatedFleet) runUntil(until time.Duration, stop func() bool) {
	for len(f.visits) > 0 && f.visits[0].at <= until && !stop() {
		if next := f.lastPass + passInterval; next < f.visits[0].at {
			f.runPass(next)
			continue
		}
		v := heap.Pop(&f.visits).(visit) //nolint:errcheck // the heap contains only visits
		f.setClock(max(v.at, f.now))
		if v.endsTask {
			_, offers, err := f.Release(f.t.Context(), f.pool, f.pace, []string{v.device.want.Lease})
			must.Succeed(f.t, err)
			f.wakeOffered(offers)
			if v.device.tasksLeft > 0 { // the report with the result asks for the next task
				v.device.tasksLeft--
				v.device.done, v.device.want.Task = false, v.device.want.Task+1_000_000
				v.device.want.Lease += "+"
				f.handleVisit(v.device)
			}
		} else if !v.device.done {
			f.handleVisit(v.device)
		}
	}
}

// runPass does what the pass "hand on" of the dispatcher does at the time in the parameter at: it offers slots if the pool needs that. It
// also offers slots in every 20th pass, so that devices that are gone leave the queue.
func (f *simulatedFleet) runPass(at time.Duration) {
	f.lastPass = at
	_, due, err := f.FindWaitingPools(f.t.Context(), []string{f.pool})
	must.Succeed(f.t, err)
	if len(due) == 0 && at%(20*passInterval) != 0 {
		return
	}
	f.setClock(max(at, f.now))
	queue, err := f.OfferSlots(f.t.Context(), f.pool, f.pace, nil)
	must.Succeed(f.t, err)
	f.wakeOffered(queue.Offers)
}

func (f *simulatedFleet) handleVisit(m *simulatedDevice) {
	f.requestCount++
	m.requestCount++
	m.isComing = false
	if m.paused { // a paused device has no task that may start, so its report ends its waiting
		f.updateQueue(slots.Update{Kind: slots.WaiterLeft, Device: m.name})
		return
	}
	if m.requestCount == 1 {
		m.firstAskedAt, m.grantsAtAsk = f.now, f.grants
	}
	chance := f.random.Float64()
	if m.requestCount > 1 {
		after, err := f.Refresh(f.t.Context(), f.pool, f.pace, []slots.WaiterRefresh{{Device: m.name, Reach: m.reach, Chance: chance}})
		must.Succeed(f.t, err)
		if after[0] > 0 {
			f.refreshCount++
			f.planRequest(m, after[0])
			return
		}
	}
	r := slots.Request{Device: m.name, Wants: []slots.Want{m.want}, Reach: m.reach, Chance: chance}
	got, offers, err := f.Acquire(f.t.Context(), f.pool, f.pace, []slots.Request{r})
	must.Succeed(f.t, err)
	if got[0].Status == slots.StatusAcquired {
		f.grants++
		f.grantsAt = append(f.grantsAt, f.now)
		m.done, m.grantedAt, m.grantsUntilGrant = true, f.now, f.grants-m.grantsAtAsk
		works := time.Duration((0.5 + f.random.Float64()) * float64(f.pace.MeanHold))
		f.endsAt = append(f.endsAt, f.now+works)
		heap.Push(&f.visits, visit{at: f.now + works, device: m, endsTask: true})
	} else {
		f.planRequest(m, got[0].AskAfter)
	}
	f.wakeOffered(offers)
}

// planRequest plans the next request of a device. The parameter after is the time after which the device was asked to ask again.
func (f *simulatedFleet) planRequest(m *simulatedDevice, after time.Duration) {
	late := time.Duration(f.random.Float64() * float64(50*time.Millisecond))
	heap.Push(&f.visits, visit{at: f.now + after + late, device: m})
}

// grantsWithin returns how many grants were made after the time from, until from+length (inclusive).
func (f *simulatedFleet) grantsWithin(from, length time.Duration) (n int) {
	for _, at := range f.grantsAt {
		if at > from && at <= from+length {
			n++
		}
	}
	return n
}

// TestFewPollersBesideManyThatAreTold checks a pool in which many devices that can be notified wait, together with a few devices that only
// poll. The pollers must also get slots soon.
func TestFewPollersBesideManyThatAreTold(t *testing.T) {
	t.Parallel()
	many := 50_000
	if testing.Short() {
		many = 2000
	}
	for _, capacity := range []int{1, 10, 60} {
		for _, hold := range []time.Duration{500 * time.Millisecond, 20 * time.Second} {
			t.Run(fmt.Sprintf("%d slots, held %s", capacity, hold), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, capacity, hold)
				f.joinDevices(many, 1)
				f.runUntil(10*hold, func() bool { return false })
				few := f.addDevices(3, 2, slots.ReachNone, f.now, time.Millisecond)
				f.runUntil(f.now+1000*hold, func() bool { return few[0].done && few[1].done && few[2].done })
				for _, m := range few {
					most := max(2*capacity+3, f.grantsWithin(m.firstAskedAt, 4*time.Second))
					t.Logf("granted after %d grants, %s and %d reports; want %d grants at most", m.grantsUntilGrant, m.grantedAt-m.firstAskedAt, m.requestCount, most)
					if !m.done || m.grantsUntilGrant > most {
						t.Errorf("done %v after %d grants, want %d at most", m.done, m.grantsUntilGrant, most)
					}
				}
			})
		}
	}
}

// TestNoBatchHidesBehindOthers checks many batches with one waiting device each. Every batch must get a slot in time, however many batches
// there are.
func TestNoBatchHidesBehindOthers(t *testing.T) {
	t.Parallel()
	capacities := []int{1, 10, 60}
	if testing.Short() {
		capacities = capacities[1:2]
	}
	for _, capacity := range capacities {
		for _, reach := range []slots.Reach{slots.ReachNone, slots.ReachPush} {
			t.Run(fmt.Sprintf("%d slots, reach %d", capacity, reach), func(t *testing.T) {
				t.Parallel()
				const batches = 300
				f := newFleet(t, capacity, time.Second)
				f.joinDevices(batches+2*capacity, 1) // more waiters, all of one batch
				f.runUntil(2*time.Second, func() bool { return false })
				var all []*simulatedDevice
				for batch := range int64(batches) {
					all = append(all, f.addDevices(1, batch+2, reach, f.now, time.Second)...)
				}
				f.runUntil(f.now+time.Hour, func() bool { return false })
				worst := 0
				for _, m := range all {
					worst = max(worst, m.grantsUntilGrant)
					if !m.done {
						t.Errorf("%s of batch %d was never granted", m.name, m.want.Batch)
					}
				}
				t.Logf("granted after %d grants at most", worst)
			})
		}
	}
}

// TestPollersDoNotStorm checks a pool in which thousands of polling devices wait. They must not flood the pool with requests: they may ask
// a few times for each slot that becomes free, and each device once in each report period.
func TestPollersDoNotStorm(t *testing.T) {
	t.Parallel()
	pollers, told := 10_000, 40_000
	if testing.Short() {
		pollers, told = 3000, 6000
	}
	f := newFleet(t, 60, 200*time.Millisecond)
	f.joinDevices(told, 1)
	all := f.addDevices(pollers, 2, slots.ReachNone, 0, 5*time.Second)
	f.runUntil(6*time.Second, func() bool { return false })
	const seconds = 4
	before, began := f.requestCount, f.now
	f.runUntil(began+seconds*time.Second, func() bool { return false })
	rate, grants := float64(f.requestCount-before)/seconds, float64(f.grantsWithin(began, seconds*time.Second))/seconds
	waiting := 0
	for _, m := range all {
		if !m.done {
			waiting++
		}
	}
	most := 5*grants + float64(pollers)/f.pace.ReportPeriod.Seconds()
	t.Logf("%d of %d wait: %.0f reports a second and %.0f grants; want %.0f reports at most", waiting, pollers, rate, grants, most)
	if waiting == 0 || rate > most {
		t.Errorf("%.0f reports a second, want %.0f at most", rate, most)
	}
}

// TestPollersShareByWeight checks that batches whose devices only poll also share the slots of the pool by weight.
func TestPollersShareByWeight(t *testing.T) {
	t.Parallel()
	weights := []int{2, 1}
	if testing.Short() {
		weights = weights[:1]
	}
	for _, weight := range weights {
		t.Run(fmt.Sprintf("%d to 1", weight), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 60, 3*time.Second)
			f.pace.ReportPeriod = 10 * time.Second
			one, other := f.addDevices(90, 1, slots.ReachNone, 0, f.pace.ReportPeriod), f.addDevices(90, 2, slots.ReachNone, 0, f.pace.ReportPeriod)
			for i := range one {
				one[i].tasksLeft, other[i].tasksLeft, one[i].want.Weight, other[i].want.Weight = 1000, 1000, weight, 1
			}
			f.runUntil(40*time.Second, func() bool { return false })
			held := map[int64]float64{}
			const samples = 300
			for range samples {
				f.runUntil(f.now+200*time.Millisecond, func() bool { return false })
				f.setClock(f.now + 200*time.Millisecond)
				for _, l := range f.readSnapshot(t, f.pool).Leases {
					held[l.Batch] += 1.0 / samples
				}
			}
			t.Logf("held on average %.1f and %.1f of 60; %.2f reports a grant", held[1], held[2], float64(f.requestCount)/float64(f.grants))
			want := 60 * float64(weight) / float64(weight+1)
			if held[1] < want-4 || held[1] > want+4 {
				t.Errorf("%.1f, want %.0f", held[1], want)
			}
		})
	}
}

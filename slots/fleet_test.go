package slots_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

// fleet simulates devices that share a pool, each with a task, on a simulated clock. A device that
// can be notified asks when it is offered a slot. Every other device asks when it was asked to come
// back.
type fleet struct {
	*server

	t    *testing.T
	pool string
	pace slots.Pace
	dice *rand.Rand

	now      time.Duration
	visits   visits
	devices  map[string]*member
	capacity int
	grants   int
	asks     int
	grantsAt []time.Duration
}

type member struct {
	name             string
	want             slots.Want
	reach            slots.Reach
	asked, granted   time.Duration
	grantsAtAsk      int
	grantsUntilGrant int
	asks             int
	done, coming     bool
	more             int // number of tasks that follow this one
}

// visit is an event of a device: it asks for a slot, or its task ends.
type visit struct {
	at   time.Duration
	of   *member
	ends bool
}

type visits []visit

func (v visits) Len() int           { return len(v) }
func (v visits) Less(i, j int) bool { return v[i].at < v[j].at }
func (v visits) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *visits) Push(x any)        { *v = append(*v, x.(visit)) } //nolint:errcheck,forcetypeassert // nothing else is pushed
func (v *visits) Pop() any {
	last := len(*v) - 1
	x := (*v)[last]
	*v = (*v)[:last]
	return x
}

const fleetBegins = 1_800_000_000_000 // start of the simulated clock in ms

func newFleet(t *testing.T, capacity int, hold time.Duration) *fleet {
	t.Helper()
	s := onRedis(t)
	f := &fleet{
		server: s, t: t, pool: t.Name(), capacity: capacity, devices: map[string]*member{}, dice: rand.New(rand.NewPCG(1, 2)),
		pace: slots.Pace{Hold: hold, Soonest: time.Second, Period: 30 * time.Second, Offer: 3 * time.Second},
	}
	s.Semaphore = slots.NewOnClock(s.client)
	f.set(0)
	s.restore(t, f.pool, slots.Config{Capacity: capacity, Version: 1})
	return f
}

// set moves the clock.
func (f *fleet) set(now time.Duration) {
	f.now = now
	if err := f.client.Set(f.t.Context(), slots.Clock(f.pool), fleetBegins+now.Milliseconds(), 0).Err(); err != nil {
		f.t.Fatal(err)
	}
}

// add adds n devices of a batch. Each device first asks at a random time between at and at+within.
func (f *fleet) add(n int, batch int64, reach slots.Reach, at, within time.Duration) (added []*member) {
	for range n {
		task := int64(len(f.devices) + 1)
		m := &member{name: fmt.Sprintf("d%d", task), reach: reach, want: slots.Want{Lease: fmt.Sprint(task), TTL: time.Hour, Batch: batch, Task: task}}
		f.devices[m.name] = m
		heap.Push(&f.visits, visit{at: at + time.Duration(f.dice.Float64()*float64(within)), of: m})
		added = append(added, m)
	}
	return added
}

// sit adds n devices that can be notified. They join the queue without having asked.
func (f *fleet) sit(n int, batch int64) {
	var joiners []slots.Joiner
	for range n {
		task := int64(len(f.devices) + 1)
		m := &member{name: fmt.Sprintf("d%d", task), reach: slots.ReachPush, want: slots.Want{Lease: fmt.Sprint(task), TTL: time.Hour, Batch: batch, Task: task}}
		f.devices[m.name] = m
		joiners = append(joiners, slots.Joiner{Waiter: slots.Waiter{Device: m.name, Batch: batch, Task: task}, Reach: m.reach})
	}
	line, err := f.Join(f.t.Context(), f.pool, f.pace, joiners)
	if err != nil {
		f.t.Fatal(err)
	}
	f.wake(line.Offers)
}

// wake lets the device of each offer ask soon.
func (f *fleet) wake(offers []slots.Offer) {
	for _, o := range offers {
		m := f.devices[o.Device]
		if m == nil || m.done || m.coming {
			continue
		}
		m.coming = true
		heap.Push(&f.visits, visit{at: f.now + 20*time.Millisecond, of: m})
	}
}

// run processes the visits until the time until, or until stop returns true.
func (f *fleet) run(until time.Duration, stop func() bool) {
	for len(f.visits) > 0 && f.visits[0].at <= until && !stop() {
		v := heap.Pop(&f.visits).(visit) //nolint:errcheck,forcetypeassert // nothing else is in it
		f.set(max(v.at, f.now))
		if v.ends {
			_, offers, err := f.Release(f.t.Context(), f.pool, f.pace, []string{v.of.want.Lease})
			if err != nil {
				f.t.Fatal(err)
			}
			f.wake(offers)
			if v.of.more > 0 { // the report with the result asks for the next task
				v.of.more--
				v.of.done, v.of.want.Task = false, v.of.want.Task+1_000_000
				v.of.want.Lease += "+"
				f.visit(v.of)
			}
		} else if !v.of.done {
			f.visit(v.of)
		}
	}
}

func (f *fleet) visit(m *member) {
	f.asks++
	m.asks++
	m.coming = false
	if m.asks == 1 {
		m.asked, m.grantsAtAsk = f.now, f.grants
	}
	r := slots.Request{Device: m.name, Wants: []slots.Want{m.want}, Reach: m.reach, Chance: f.dice.Float64()}
	got, offers, err := f.Acquire(f.t.Context(), f.pool, f.pace, []slots.Request{r})
	if err != nil {
		f.t.Fatal(err)
	}
	if got[0].Status == slots.StatusAcquired {
		f.grants++
		f.grantsAt = append(f.grantsAt, f.now)
		m.done, m.granted, m.grantsUntilGrant = true, f.now, f.grants-m.grantsAtAsk
		works := time.Duration((0.5 + f.dice.Float64()) * float64(f.pace.Hold))
		heap.Push(&f.visits, visit{at: f.now + works, of: m, ends: true})
	} else {
		late := time.Duration(f.dice.Float64() * float64(50*time.Millisecond))
		heap.Push(&f.visits, visit{at: f.now + got[0].After + late, of: m})
	}
	f.wake(offers)
}

// until returns the number of grants after from, up to and including from+long.
func (f *fleet) until(from, long time.Duration) (n int) {
	for _, at := range f.grantsAt {
		if at > from && at <= from+long {
			n++
		}
	}
	return n
}

// A few pollers get slots soon, although many other devices wait that can be notified.
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
				f.sit(many, 1)
				f.run(10*hold, func() bool { return false })
				few := f.add(3, 2, slots.ReachNone, f.now, time.Millisecond)
				f.run(f.now+1000*hold, func() bool { return few[0].done && few[1].done && few[2].done })
				for _, m := range few {
					most := max(2*capacity+3, f.until(m.asked, 4*time.Second))
					t.Logf("granted after %d grants, %s and %d reports; want %d grants at most", m.grantsUntilGrant, m.granted-m.asked, m.asks, most)
					if !m.done || m.grantsUntilGrant > most {
						t.Errorf("done %v after %d grants, want %d at most", m.done, m.grantsUntilGrant, most)
					}
				}
			})
		}
	}
}

// If many batches have one waiter each, every batch gets a slot, however many batches there are.
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
				f.sit(batches+2*capacity, 1) // more waiters, all of one batch
				f.run(2*time.Second, func() bool { return false })
				var all []*member
				for batch := range int64(batches) {
					all = append(all, f.add(1, batch+2, reach, f.now, time.Second)...)
				}
				f.run(f.now+time.Hour, func() bool { return false })
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

// Thousands of waiting pollers do not flood the pool with requests: they ask a few times for each
// slot that falls free, and once in each period.
func TestPollersDoNotStorm(t *testing.T) {
	t.Parallel()
	pollers, told := 10_000, 40_000
	if testing.Short() {
		pollers, told = 3000, 6000
	}
	f := newFleet(t, 60, 200*time.Millisecond)
	f.sit(told, 1)
	all := f.add(pollers, 2, slots.ReachNone, 0, 5*time.Second)
	f.run(6*time.Second, func() bool { return false })
	const seconds = 4
	before, began := f.asks, f.now
	f.run(began+seconds*time.Second, func() bool { return false })
	rate, grants := float64(f.asks-before)/seconds, float64(f.until(began, seconds*time.Second))/seconds
	waiting := 0
	for _, m := range all {
		if !m.done {
			waiting++
		}
	}
	most := 5*grants + float64(pollers)/f.pace.Period.Seconds()
	t.Logf("%d of %d wait: %.0f reports a second and %.0f grants; want %.0f reports at most", waiting, pollers, rate, grants, most)
	if waiting == 0 || rate > most {
		t.Errorf("%.0f reports a second, want %.0f at most", rate, most)
	}
}

// Batches whose devices only poll share the slots by weight, too.
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
			f.pace.Period = 10 * time.Second
			one, other := f.add(90, 1, slots.ReachNone, 0, f.pace.Period), f.add(90, 2, slots.ReachNone, 0, f.pace.Period)
			for i := range one {
				one[i].more, other[i].more, one[i].want.Weight, other[i].want.Weight = 1000, 1000, weight, 1
			}
			f.run(40*time.Second, func() bool { return false })
			held := map[int64]float64{}
			const samples = 300
			for range samples {
				f.run(f.now+200*time.Millisecond, func() bool { return false })
				f.set(f.now + 200*time.Millisecond)
				for _, l := range f.snapshot(t, f.pool).Leases {
					held[l.Batch] += 1.0 / samples
				}
			}
			t.Logf("held on average %.1f and %.1f of 60; %.2f reports a grant", held[1], held[2], float64(f.asks)/float64(f.grants))
			want := 60 * float64(weight) / float64(weight+1)
			if held[1] < want-4 || held[1] > want+4 {
				t.Errorf("%.1f, want %.0f", held[1], want)
			}
		})
	}
}

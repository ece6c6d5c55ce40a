package makespan

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/slots"
)

// modelled is a model of slots/lua/queue.lua without Redis, for a fleet of one batch.
type modelled struct {
	polling
	line    tally // devices that were refused
	waits   []bool
	turn    []int
	due     []time.Duration
	owed    []int                 // sorted by turn
	kept    map[int]time.Duration // the time until which a slot is kept for a device
	waiting int
	free    int
	grants  int
	hold    mean
}

func (p polling) modelled() *modelled {
	return &modelled{
		polling: p, free: p.slots, hold: mean{newest: 0.05}, kept: make(map[int]time.Duration),
		line: make(tally, p.devices+1), waits: make([]bool, p.devices), turn: make([]int, p.devices), due: make([]time.Duration, p.devices),
	}
}

func (m *modelled) byTurn(a, b int) int {
	return cmp.Or(cmp.Compare(m.turn[a], m.turn[b]), cmp.Compare(a, b))
}

// owe sets whether a device is owed a slot, and returns how many owed devices are before it.
func (m *modelled) owe(device int, owed bool) int {
	i, is := slices.BinarySearchFunc(m.owed, device, m.byTurn)
	switch {
	case owed && !is:
		m.owed = slices.Insert(m.owed, i, device)
	case !owed && is:
		m.owed = slices.Delete(m.owed, i, i+1)
	}
	return i
}

func (m *modelled) ask(device int, now time.Duration, chance float64) (bool, time.Duration) {
	m.lapse(now)
	defer m.keep(now)
	if _, mine := m.kept[device]; mine || m.free > len(m.kept) {
		delete(m.kept, device)
		m.free--
		m.grants++
		m.owe(device, false)
		m.stand(device, false)
		return true, 0
	}
	if turn := m.grants + m.line.below(device) + 1; !m.waits[device] || turn < m.turn[device] {
		m.owe(device, false)
		m.turn[device] = turn
	}
	m.stand(device, true)
	after := m.sleep(device, chance)
	m.due[device] = now + after
	return false, after
}

func (m *modelled) stand(device int, in bool) {
	if m.waits[device] == in {
		return
	}
	m.waits[device] = in
	n := 1
	if !in {
		n = -1
	}
	m.line.add(device, n)
	m.waiting += n
}

func (m *modelled) release(_ int, worked, now time.Duration) {
	m.lapse(now)
	m.free++
	m.hold.add(worked + handover)
	m.keep(now)
}

// keeps returns the maximum number of devices for which slots are kept concurrently.
func (m *modelled) keeps() int { return max(m.slots/20, 3) }

func (m *modelled) usual() time.Duration { return cmp.Or(m.hold.value, unknown) }

func (m *modelled) lapse(now time.Duration) {
	for device, until := range m.kept {
		if until <= now {
			delete(m.kept, device)
			m.owe(device, false)
		}
	}
}

// keep keeps free slots for the owed devices that are due soon, in the order in which they are due.
func (m *modelled) keep(now time.Duration) {
	window := max(min(2*m.usual()/time.Duration(m.slots), 2*time.Second), 20*time.Millisecond)
	for m.free > len(m.kept) {
		first := -1
		for _, device := range m.owed[:min(len(m.owed), m.keeps())] {
			_, has := m.kept[device]
			if !has && m.due[device]+late > now && m.due[device] <= now+window && (first < 0 || m.due[device] < m.due[first]) {
				first = device
			}
		}
		if first < 0 {
			return
		}
		m.kept[first] = m.due[first] + late
	}
}

func (m *modelled) sleep(device int, chance float64) time.Duration {
	interval, period, early := m.usual().Seconds()/float64(m.slots), m.period.Seconds(), 0.9+chance/10
	ahead := float64(m.turn[device] - m.grants)
	var after float64
	switch rank := m.owe(device, m.grants >= m.turn[device]+m.slots); {
	case m.grants >= m.turn[device]+m.slots:
		after = max(min(float64(rank)*interval, period)*early, min(1+chance/4+float64(rank)/float64(m.keeps())/4, 2))
	case ahead <= 0:
		after = min((ahead+float64(m.slots))*interval, 3*period) * early
	default:
		after = min(ahead*interval, 3*period) * early
	}
	return time.Duration(max(after, soonest.Seconds()) * float64(time.Second))
}

const (
	unknown = 5 * time.Second // assumed hold time before the first hold has ended
	soonest = time.Second
	late    = time.Second
)

// scripted runs the real semaphore on a Redis whose clock is the model's.
type scripted struct {
	polling
	t          *testing.T
	mini       *miniredis.Miniredis
	semaphore  *slots.Semaphore
	began      time.Time
	hold       mean
	unfinished int
}

const pool = "p"

func (p polling) scripted(t *testing.T) *scripted {
	t.Helper()
	mini := miniredis.RunT(t)
	options := redisconn.Options(mini.Addr())
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = time.Minute, time.Minute, time.Minute, time.Minute
	client := redis.NewUniversalClient(options)
	t.Cleanup(func() { _ = client.Close() })
	s := &scripted{polling: p, t: t, mini: mini, semaphore: slots.New(client), began: time.Unix(1_800_000_000, 0), hold: mean{newest: 0.05}, unfinished: p.devices}
	s.mini.SetTime(s.began)
	if ok, err := s.semaphore.Restore(t.Context(), pool, slots.Config{Capacity: p.slots, Version: 1}, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	return s
}

func (s *scripted) pace() slots.Pace {
	return slots.Pace{Hold: cmp.Or(s.hold.value, unknown), Soonest: soonest, Period: s.period, Offer: 3 * time.Second}
}

func (s *scripted) ask(device int, now time.Duration, chance float64) (bool, time.Duration) {
	s.mini.SetTime(s.began.Add(now))
	name := strconv.Itoa(device)
	want := slots.Want{Lease: name, TTL: time.Hour, Batch: 1, Weight: 1, Task: int64(device)}
	done := s.serve(slots.Exchange{Requests: []slots.Request{{Device: name, Wants: []slots.Want{want}, Chance: chance}}})
	if done.Got[0].Status == slots.StatusAcquired {
		return true, 0
	}
	return false, done.Got[0].After
}

func (s *scripted) release(device int, worked, now time.Duration) {
	s.mini.SetTime(s.began.Add(now))
	s.hold.add(worked + handover)
	if done := s.serve(slots.Exchange{Leases: []string{strconv.Itoa(device)}}); !done.Freed[0] {
		s.t.Fatal(done)
	}
}

func (s *scripted) serve(of slots.Exchange) slots.Served {
	done := s.semaphore.Serve(s.t.Context(), []slots.Call{{Pool: pool, Pace: s.pace(), Exchange: of}})[0]
	if done.Err != nil {
		s.t.Fatal(done.Err)
	}
	return done
}

// average returns the average of several runs of the model.
func (p polling) average() (sum polled) {
	const runs = 5
	for p.seed = range uint64(runs) {
		one := p.run(p.modelled())
		sum.makespan += one.makespan / runs
		sum.refused += one.refused / runs
		sum.lastAsk += one.lastAsk / runs
	}
	return sum
}

// TestSteering checks that a deep batch of devices that only poll takes at most 1.08 times the bound.
func TestSteering(t *testing.T) {
	t.Parallel()
	for _, devices := range []int{deep, 100 * capacity} {
		got := fleetOf(devices).average()
		t.Logf("%d devices: %.3f times the bound, %.2f refused per grant", devices, got.makespan, got.refused)
		if got.makespan > 1.08 {
			t.Errorf("%d devices take %.3f times the bound, want 1.08 at most", devices, got.makespan)
		}
	}
}

// TestUnannounced shows that a shallow batch without a notification ends when the device that asks last has done its work, however it is
// dispatched. This time alone is more than twice the bound and the work.
func TestUnannounced(t *testing.T) {
	t.Parallel()
	p := fleetOf(flat)
	got := p.average()
	bound := float64(p.devices) / float64(p.slots) * p.work.Seconds()
	unit := bound / (bound + p.work.Seconds())
	last, least := got.lastAsk*unit, (got.lastAsk*bound+p.work.Seconds()/2)/(bound+p.work.Seconds())
	t.Logf("in units of bound + work: the last device asks after %.2f, so %.2f at least; what is built %.2f", last, least, got.makespan*unit)
	if last <= 2 {
		t.Errorf("the last device asks after %.2f: the target can be reached", last)
	}
	if most := least + p.work.Seconds()/(bound+p.work.Seconds()); got.makespan*unit > most {
		t.Errorf("%.2f, want %.2f at most: more than the last one's own work is lost", got.makespan*unit, most)
	}
}

// TestSemaphoreSteers checks that the scripts give about the same results as the model. The tolerance covers the slots that the scripts
// keep for devices that are about to ask.
func TestSemaphoreSteers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: 1,000 devices ask Lua scripts that are interpreted under the race detector, fewer say nothing; make test-long runs it")
	}
	sizes := []polling{{devices: 1000, slots: 40, work: work, period: period}}
	if *whole {
		sizes = []polling{fleetOf(deep), fleetOf(100 * capacity)}
	}
	for _, p := range sizes {
		said, did := p.average(), p.run(p.scripted(t))
		t.Logf("%d devices: modelled %.3f times the bound, %.2f refused per grant; the semaphore %.3f, %.2f", p.devices, said.makespan, said.refused, did.makespan, did.refused)
		if math.Abs(did.refused-said.refused) > 0.2*said.refused || math.Abs(did.makespan-said.makespan) > 0.06 {
			t.Errorf("%d devices: the semaphore does %+v, modelled is %+v", p.devices, did, said)
		}
	}
}

func fleetOf(devices int) polling {
	return polling{devices: devices, slots: capacity, work: work, period: period}
}

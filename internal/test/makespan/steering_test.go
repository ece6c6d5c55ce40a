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

// queueModel is a model of the queue in slots/lua/queue.lua, for a fleet of one batch. It uses no Redis.
type queueModel struct {
	pollingModel
	refusedRanks rankTree // devices that were refused
	isWaiting    []bool
	turns        []int
	nextAsks     []time.Duration
	overdue      []int                 // devices that are owed a slot, sorted by turn
	keptUntil    map[int]time.Duration // the time until which a slot is kept for a device
	waitingCount int
	free         int
	grants       int
	holdMean     movingMean
}

func (p pollingModel) newQueueModel() *queueModel {
	return &queueModel{
		pollingModel: p, free: p.slots, holdMean: movingMean{newestWeight: 0.05}, keptUntil: make(map[int]time.Duration),
		refusedRanks: make(rankTree, p.devices+1), isWaiting: make([]bool, p.devices), turns: make([]int, p.devices), nextAsks: make([]time.Duration, p.devices),
	}
}

func (m *queueModel) byTurn(a, b int) int {
	return cmp.Or(cmp.Compare(m.turns[a], m.turns[b]), cmp.Compare(a, b))
}

// setOverdue records whether a device is owed a slot. It returns the number of owed devices before this device.
func (m *queueModel) setOverdue(device int, isOverdue bool) int {
	i, is := slices.BinarySearchFunc(m.overdue, device, m.byTurn)
	switch {
	case isOverdue && !is:
		m.overdue = slices.Insert(m.overdue, i, device)
	case !isOverdue && is:
		m.overdue = slices.Delete(m.overdue, i, i+1)
	}
	return i
}

func (m *queueModel) decide(device int, now time.Duration, chance float64) (bool, time.Duration) {
	m.dropLapsed(now)
	defer m.keepSlots(now)
	if _, mine := m.keptUntil[device]; mine || m.free > len(m.keptUntil) {
		delete(m.keptUntil, device)
		m.free--
		m.grants++
		m.setOverdue(device, false)
		m.setWaiting(device, false)
		return true, 0
	}
	if turn := m.grants + m.refusedRanks.countBelow(device) + 1; !m.isWaiting[device] || turn < m.turns[device] {
		m.setOverdue(device, false)
		m.turns[device] = turn
	}
	m.setWaiting(device, true)
	after := m.retryDelay(device, chance)
	m.nextAsks[device] = now + after
	return false, after
}

func (m *queueModel) setWaiting(device int, waits bool) {
	if m.isWaiting[device] == waits {
		return
	}
	m.isWaiting[device] = waits
	n := 1
	if !waits {
		n = -1
	}
	m.refusedRanks.add(device, n)
	m.waitingCount += n
}

func (m *queueModel) release(_ int, worked, now time.Duration) {
	m.dropLapsed(now)
	m.free++
	m.holdMean.add(worked + resultDelay)
	m.keepSlots(now)
}

// maxKept returns the maximum number of devices for which slots are kept at the same time.
func (m *queueModel) maxKept() int { return max(m.slots/20, 3) }

func (m *queueModel) usualHold() time.Duration { return cmp.Or(m.holdMean.value, defaultHold) }

func (m *queueModel) dropLapsed(now time.Duration) {
	for device, until := range m.keptUntil {
		if until <= now {
			delete(m.keptUntil, device)
			m.setOverdue(device, false)
		}
	}
}

// keepSlots keeps free slots for those owed devices that are due soon, in the order in which they are due.
func (m *queueModel) keepSlots(now time.Duration) {
	window := max(min(2*m.usualHold()/time.Duration(m.slots), 2*time.Second), 20*time.Millisecond)
	for m.free > len(m.keptUntil) {
		first := -1
		for _, device := range m.overdue[:min(len(m.overdue), m.maxKept())] {
			_, has := m.keptUntil[device]
			if !has && m.nextAsks[device]+lateTolerance > now && m.nextAsks[device] <= now+window && (first < 0 || m.nextAsks[device] < m.nextAsks[first]) {
				first = device
			}
		}
		if first < 0 {
			return
		}
		m.keptUntil[first] = m.nextAsks[first] + lateTolerance
	}
}

func (m *queueModel) retryDelay(device int, chance float64) time.Duration {
	interval, period, early := m.usualHold().Seconds()/float64(m.slots), m.period.Seconds(), 0.9+chance/10
	ahead := float64(m.turns[device] - m.grants)
	var after float64
	switch rank := m.setOverdue(device, m.grants >= m.turns[device]+m.slots); {
	case m.grants >= m.turns[device]+m.slots:
		after = max(min(float64(rank)*interval, period)*early, min(1+chance/4+float64(rank)/float64(m.maxKept())/4, 2))
	case ahead <= 0:
		after = min((ahead+float64(m.slots))*interval, 3*period) * early
	default:
		after = min(ahead*interval, 3*period) * early
	}
	return time.Duration(max(after, minRetry.Seconds()) * float64(time.Second))
}

const (
	defaultHold   = 5 * time.Second // assumed hold time before the first hold has ended
	minRetry      = time.Second
	lateTolerance = time.Second
)

// semaphoreRun runs the real semaphore on a Redis whose clock is the clock of the model.
type semaphoreRun struct {
	pollingModel
	t          *testing.T
	mini       *miniredis.Miniredis
	semaphore  *slots.Semaphore
	began      time.Time
	holdMean   movingMean
	unfinished int
}

const pool = "p"

func (p pollingModel) newSemaphoreRun(t *testing.T) *semaphoreRun {
	t.Helper()
	mini := miniredis.RunT(t)
	options := redisconn.Options(mini.Addr())
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = time.Minute, time.Minute, time.Minute, time.Minute
	client := redis.NewUniversalClient(options)
	t.Cleanup(func() { _ = client.Close() })
	s := &semaphoreRun{pollingModel: p, t: t, mini: mini, semaphore: slots.New(client), began: time.Unix(1_800_000_000, 0), holdMean: movingMean{newestWeight: 0.05}, unfinished: p.devices}
	s.mini.SetTime(s.began)
	if ok, err := s.semaphore.Restore(t.Context(), pool, slots.Config{Capacity: p.slots, Version: 1}, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	return s
}

func (s *semaphoreRun) pace() slots.Pace {
	return slots.Pace{MeanHold: cmp.Or(s.holdMean.value, defaultHold), MinWait: minRetry, ReportPeriod: s.period, OfferTTL: 3 * time.Second}
}

func (s *semaphoreRun) decide(device int, now time.Duration, chance float64) (bool, time.Duration) {
	s.mini.SetTime(s.began.Add(now))
	name := strconv.Itoa(device)
	want := slots.Want{Lease: name, TTL: time.Hour, Batch: 1, Weight: 1, Task: int64(device)}
	done := s.runExchange(slots.Exchange{Requests: []slots.Request{{Device: name, Wants: []slots.Want{want}, Chance: chance}}})
	if done.Acquisitions[0].Status == slots.StatusAcquired {
		return true, 0
	}
	return false, done.Acquisitions[0].AskAfter
}

func (s *semaphoreRun) release(device int, worked, now time.Duration) {
	s.mini.SetTime(s.began.Add(now))
	s.holdMean.add(worked + resultDelay)
	if done := s.runExchange(slots.Exchange{Leases: []string{strconv.Itoa(device)}}); !done.Freed[0] {
		s.t.Fatal(done)
	}
}

func (s *semaphoreRun) runExchange(exchange slots.Exchange) slots.ExchangeResult {
	done := s.semaphore.Serve(s.t.Context(), []slots.Call{{Pool: pool, Pace: s.pace(), Exchange: exchange}})[0]
	if done.Err != nil {
		s.t.Fatal(done.Err)
	}
	return done
}

func (p pollingModel) averageRun() (sum pollingResult) {
	const runs = 5
	for p.seed = range uint64(runs) {
		one := p.run(p.newQueueModel())
		sum.makespan += one.makespan / runs
		sum.refused += one.refused / runs
		sum.lastAsk += one.lastAsk / runs
	}
	return sum
}

// TestSteering checks a batch with many more tasks than slots whose devices only poll: it takes at most 1.08 times
// the lower bound.
func TestSteering(t *testing.T) {
	t.Parallel()
	for _, devices := range []int{deepTasks, 100 * capacity} {
		got := newPollingModel(devices).averageRun()
		t.Logf("%d devices: %.3f times the bound, %.2f refused per grant", devices, got.makespan, got.refused)
		if got.makespan > 1.08 {
			t.Errorf("%d devices take %.3f times the bound, want 1.08 at most", devices, got.makespan)
		}
	}
}

// TestUnannounced shows a batch with few tasks per slot whose devices are not notified of the batch. The batch cannot end before the device
// that asks last has done its work. With any dispatcher, this takes more than twice the bound plus the work.
func TestUnannounced(t *testing.T) {
	t.Parallel()
	p := newPollingModel(shallowTasks)
	got := p.averageRun()
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

// TestSemaphoreSteers checks that the real scripts give about the same results as the model. The tolerance covers
// the slots that the scripts keep for devices that are about to ask.
func TestSemaphoreSteers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: 1,000 devices ask Lua scripts that are interpreted under the race detector, fewer say nothing; make test-long runs it")
	}
	sizes := []pollingModel{{devices: 1000, slots: 40, work: work, period: period}}
	if *fullSize {
		sizes = []pollingModel{newPollingModel(deepTasks), newPollingModel(100 * capacity)}
	}
	for _, p := range sizes {
		said, did := p.averageRun(), p.run(p.newSemaphoreRun(t))
		t.Logf("%d devices: modelled %.3f times the bound, %.2f refused per grant; the semaphore %.3f, %.2f", p.devices, said.makespan, said.refused, did.makespan, did.refused)
		if math.Abs(did.refused-said.refused) > 0.2*said.refused || math.Abs(did.makespan-said.makespan) > 0.06 {
			t.Errorf("%d devices: the semaphore does %+v, modelled is %+v", p.devices, did, said)
		}
	}
}

func newPollingModel(devices int) pollingModel {
	return pollingModel{devices: devices, slots: capacity, work: work, period: period}
}

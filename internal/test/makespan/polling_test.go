package makespan

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// pollingModel is a model of a fleet whose devices only poll. It uses no servers. It has n devices with one task
// each. A device first asks at a random time within a period. After a refusal it asks again at the time that the
// steering policy returns. As soon as it has a slot, it works.
type pollingModel struct {
	devices, slots int
	work, period   time.Duration // mean work, drawn within 50 %
	seed           uint64
}

// steeringPolicy decides the answer to a device that asks for a slot. Devices are numbered in the order of their
// turns.
type steeringPolicy interface {
	// decide grants a slot, or returns the time after which the device must ask again. chance is a random number in
	// [0,1).
	decide(device int, now time.Duration, chance float64) (granted bool, retryAfter time.Duration)
	// release is called when a granted task has ended. worked is the time for which the device worked on the task.
	release(device int, worked, now time.Duration)
}

// pollingResult is the result of one run of the model.
type pollingResult struct {
	makespan float64 // divided by the bound
	refused  float64 // per grant
	lastAsk  float64 // when the last device first asked, divided by the bound
}

const (
	resultDelay  = 15 * time.Millisecond // time until a result arrives
	maxPollDelay = 50 * time.Millisecond // the longest time by which a device asks late
)

func (p pollingModel) run(policy steeringPolicy) (out pollingResult) {
	dice := rand.New(rand.NewPCG(p.seed, 0))
	var events eventHeap
	for device := range p.devices {
		at := time.Duration(dice.Float64() * float64(p.period))
		events = append(events, pollEvent{at: at, device: device})
		out.lastAsk = max(out.lastAsk, at.Seconds())
	}
	heap.Init(&events)
	var end, total time.Duration
	for len(events) > 0 {
		v := heap.Pop(&events).(pollEvent) //nolint:errcheck,forcetypeassert // nothing else is in it
		if v.workTime > 0 {
			policy.release(v.device, v.workTime, v.at)
			end = v.at
			continue
		}
		granted, after := policy.decide(v.device, v.at, dice.Float64())
		if granted {
			v.workTime = time.Duration((0.5 + dice.Float64()) * float64(p.work))
			total += v.workTime
			v.at += v.workTime + resultDelay
		} else {
			out.refused++
			v.at += after + time.Duration(dice.Float64()*float64(maxPollDelay))
		}
		heap.Push(&events, v)
	}
	bound := total.Seconds() / float64(p.slots)
	out.makespan = end.Seconds() / bound
	out.refused /= float64(p.devices)
	out.lastAsk /= bound
	return out
}

// pollEvent is an event of the model: a device asks for a slot, or its work ends.
type pollEvent struct {
	at       time.Duration
	device   int
	workTime time.Duration // 0 means that the device asks
}

type eventHeap []pollEvent

func (v eventHeap) Len() int           { return len(v) }
func (v eventHeap) Less(i, j int) bool { return v[i].at < v[j].at }
func (v eventHeap) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *eventHeap) Push(x any)        { *v = append(*v, x.(pollEvent)) } //nolint:errcheck,forcetypeassert // nothing else is pushed
func (v *eventHeap) Pop() any {
	last := len(*v) - 1
	x := (*v)[last]
	*v = (*v)[:last]
	return x
}

// rankTree counts, in logarithmic time, the recorded devices whose number is lower than the number of a given device.
type rankTree []int

func (t rankTree) add(device, n int) {
	for i := device + 1; i < len(t); i += i & -i {
		t[i] += n
	}
}

func (t rankTree) countBelow(device int) (sum int) {
	for i := device; i > 0; i -= i & -i {
		sum += t[i]
	}
	return sum
}

// movingMean is the moving average with which the dispatcher estimates how long a slot is held.
type movingMean struct {
	newestWeight float64 // weight of the newest value
	value        time.Duration
}

func (m *movingMean) add(d time.Duration) {
	if m.value == 0 {
		m.value = d
	}
	m.value += time.Duration(m.newestWeight * float64(d-m.value))
}

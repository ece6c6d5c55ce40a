package makespan

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// polling is a model, without servers, of a fleet that only polls. It has n devices with one task each. A device asks first at a random
// time within a period, asks again when steering requests it, and works as soon as it has a slot.
type polling struct {
	devices, slots int
	work, period   time.Duration // mean work, drawn within 50 %
	seed           uint64
}

// steering decides the answer to a device that asks. Devices are numbered in the order of their turns.
type steering interface {
	// ask grants a slot, or returns when the device must ask again. chance is in [0,1).
	ask(device int, now time.Duration, chance float64) (granted bool, after time.Duration)
	// release is called when a granted task has ended.
	release(device int, worked, now time.Duration)
}

// polled is the result of a run.
type polled struct {
	makespan float64 // divided by the bound
	refused  float64 // per grant
	lastAsk  float64 // when the last device first asked, divided by the bound
}

const (
	handover = 15 * time.Millisecond // time until a result arrives
	delay    = 50 * time.Millisecond // the longest time by which a device asks late
)

func (p polling) run(s steering) (out polled) {
	dice := rand.New(rand.NewPCG(p.seed, 0))
	var events visits
	for device := range p.devices {
		at := time.Duration(dice.Float64() * float64(p.period))
		events = append(events, visit{at: at, device: device})
		out.lastAsk = max(out.lastAsk, at.Seconds())
	}
	heap.Init(&events)
	var end, total time.Duration
	for len(events) > 0 {
		v := heap.Pop(&events).(visit) //nolint:errcheck,forcetypeassert // nothing else is in it
		if v.worked > 0 {
			s.release(v.device, v.worked, v.at)
			end = v.at
			continue
		}
		granted, after := s.ask(v.device, v.at, dice.Float64())
		if granted {
			v.worked = time.Duration((0.5 + dice.Float64()) * float64(p.work))
			total += v.worked
			v.at += v.worked + handover
		} else {
			out.refused++
			v.at += after + time.Duration(dice.Float64()*float64(delay))
		}
		heap.Push(&events, v)
	}
	bound := total.Seconds() / float64(p.slots)
	out.makespan = end.Seconds() / bound
	out.refused /= float64(p.devices)
	out.lastAsk /= bound
	return out
}

// visit is a time at which a device asks, or at which its work ends.
type visit struct {
	at     time.Duration
	device int
	worked time.Duration // 0 means that the device asks
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

// tally counts the devices with a number below another device, in logarithmic time.
type tally []int

func (t tally) add(device, n int) {
	for i := device + 1; i < len(t); i += i & -i {
		t[i] += n
	}
}

func (t tally) below(device int) (sum int) {
	for i := device; i > 0; i -= i & -i {
		sum += t[i]
	}
	return sum
}

// mean is the moving average with which the dispatcher estimates how long a slot is held.
type mean struct {
	newest float64 // weight of the newest value
	value  time.Duration
}

func (m *mean) add(d time.Duration) {
	if m.value == 0 {
		m.value = d
	}
	m.value += time.Duration(m.newest * float64(d-m.value))
}

package slots_test

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/slots"
)

// The rules of the line, as lineMachine has them.

func inBatch(a, b slots.Want) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task))
}

// view is the contest as one asker sees it.
type view struct {
	m       *lineMachine
	device  string
	weight  map[int64]int
	waiting map[int64][]passedOne // of others, in order
	newest  int
}

func (m *lineMachine) view(device string, wants []slots.Want) view {
	v := view{m: m, device: device, weight: maps.Clone(m.weight), waiting: map[int64][]passedOne{}}
	for _, w := range wants {
		v.weight[w.Batch] = w.Weight
	}
	for d, w := range m.line {
		if d != device {
			v.waiting[w.Batch] = append(v.waiting[w.Batch], passedOne{device: d, Want: w.Want})
		}
	}
	for _, list := range v.waiting {
		slices.SortFunc(list, func(a, b passedOne) int {
			return cmp.Or(inBatch(a.Want, b.Want), strings.Compare(a.device, b.device))
		})
	}
	for _, turn := range m.turn {
		v.newest = max(v.newest, turn)
	}
	return v
}

func (v view) contends(batch int64, wants []slots.Want) bool {
	return len(v.waiting[batch]) > 0 || batch == v.m.line[v.device].Batch ||
		slices.ContainsFunc(wants, func(w slots.Want) bool { return w.Batch == batch })
}

func (v view) turn(batch int64) int {
	turn, ok := v.m.turn[batch]
	if !ok {
		turn = v.newest
	}
	return max(turn, v.newest-1_000_000)
}

func (v view) first(a, b int64, given map[int64]int) bool {
	x := (v.m.held(a) + given[a]) * max(v.weight[b], 1)
	y := (v.m.held(b) + given[b]) * max(v.weight[a], 1)
	return cmp.Or(cmp.Compare(x, y), cmp.Compare(v.turn(a), v.turn(b)), cmp.Compare(a, b)) < 0
}

// grantsUntil hands out places one by one until the batch has k.
func (v view) grantsUntil(batch int64, k int, wanting map[int64]int) int {
	given := map[int64]int{}
	wanting = maps.Clone(wanting)
	wanting[batch] = k
	for grants := 1; ; grants++ {
		var best int64
		for b, n := range wanting {
			if given[b] < n && (best == 0 || v.first(b, best, given)) {
				best = b
			}
		}
		given[best]++
		if best == batch && given[batch] == k {
			return grants
		}
	}
}

func (v view) position(w slots.Want) int {
	wanting := map[int64]int{}
	for b, list := range v.waiting {
		wanting[b] = len(list)
	}
	k := 1
	for _, o := range v.waiting[w.Batch] {
		if cmp.Or(inBatch(o.Want, w), strings.Compare(o.device, v.device)) < 0 {
			k++
		}
	}
	return v.grantsUntil(w.Batch, k, wanting)
}

func (m *lineMachine) modelPosition(device string, wants []slots.Want) int {
	v := m.view(device, wants)
	position := v.position(wants[0])
	for _, w := range wants[1:] {
		position = min(position, v.position(w))
	}
	return position
}

// patience is how often the first waiter of a batch is passed over.
func (m *lineMachine) patience() int { return max(m.capacity, 3) }

func (v view) isExpected(i int, o passedOne) bool {
	due := v.m.line[o.device].due
	passed := v.m.passed[o.Batch]
	urgent := v.m.held(o.Batch) == 0 && v.m.capacity >= 20
	impatient := urgent || i == 0 && passed.device == o.device && passed.Task == o.Task && passed.Priority == o.Priority && passed.times >= v.m.patience()
	return due == dueNow || due == dueSoon && impatient
}

func (v view) hasTurn(w slots.Want, free int) bool {
	wanting, k := map[int64]int{}, 1
	for b, list := range v.waiting {
		for i, o := range list {
			if !v.isExpected(i, o) {
				continue
			}
			wanting[b]++
			if b == w.Batch && cmp.Or(inBatch(o.Want, w), strings.Compare(o.device, v.device)) < 0 {
				k++
			}
		}
	}
	return v.grantsUntil(w.Batch, k, wanting) <= free
}

func (m *lineMachine) modelAsk(device string, wants []slots.Want) slots.Acquisition {
	free := m.capacity - len(m.holds)
	if len(m.line) == 0 && !m.ghost && free > 0 && len(wants) == 1 {
		m.holds[wants[0].Lease] = wants[0].Batch
		return slots.Acquisition{Status: slots.StatusAcquired}
	}
	m.lost, m.ghost = false, false
	v := m.view(device, wants)
	if !m.counted { // with a count, batches that had no turn for long are forgotten
		maps.DeleteFunc(m.turn, func(b int64, turn int) bool { return turn <= v.newest-1_000_000 && !v.contends(b, wants) })
		m.counted = true
	}
	ordered := slices.Clone(wants)
	slices.SortFunc(ordered, func(a, b slots.Want) int {
		switch {
		case a.Batch == b.Batch:
			return inBatch(a, b)
		case v.first(a.Batch, b.Batch, nil):
			return -1
		}
		return 1
	})
	for _, w := range ordered {
		if free > max(m.capacity/20, 1) || free > 0 && v.hasTurn(w, free) {
			m.grantModel(v, device, w)
			return slots.Acquisition{Status: slots.StatusAcquired, Want: slices.Index(wants, w)}
		}
	}
	position := m.modelPosition(device, wants)
	best := ordered[slices.IndexFunc(ordered, func(w slots.Want) bool { return v.position(w) == position })]
	m.line[device] = waiter{Want: best, due: dueLater}
	m.weight[best.Batch] = best.Weight
	if _, known := m.turn[best.Batch]; !known {
		m.turn[best.Batch] = v.newest
	}
	return slots.Acquisition{Status: slots.StatusFull, Position: position}
}

func (m *lineMachine) grantModel(v view, device string, w slots.Want) {
	for b, list := range v.waiting {
		head := list[0]
		over := b == w.Batch && cmp.Or(inBatch(head.Want, w), strings.Compare(head.device, device)) < 0
		if !over && (b == w.Batch || !v.first(b, w.Batch, nil)) {
			continue
		}
		old := m.passed[b]
		if old.device != head.device || old.Task != head.Task || old.Priority != head.Priority {
			old = head
		}
		old.times = min(old.times+1, max(old.times, m.patience()))
		m.passed[b] = old
	}
	m.turn[w.Batch] = v.turn(w.Batch) + 1_000_000/w.Weight
	if len(v.waiting[w.Batch]) > 0 {
		m.weight[w.Batch] = w.Weight
	}
	delete(m.line, device)
	m.holds[w.Lease] = w.Batch
}

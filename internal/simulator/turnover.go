package simulator

import "time"

const maxGaps = 1 << 14

// Gap is the time between the end of one visit to a slot and the start of the next visit to this slot.
type Gap struct {
	Token         int64 // token of the second visit
	Left, Entered time.Time
}

// slotTurnover records when devices left and entered slots. The mutex of the visitCounter guards it.
type slotTurnover struct {
	first map[int]time.Time // slot -> when it was first entered
	left  map[int]time.Time // slot -> when it was last left
	gaps  []Gap             // the last maxGaps gaps; a ring buffer when it is full
	count int               // number of all gaps
}

func newSlotTurnover() slotTurnover {
	return slotTurnover{first: map[int]time.Time{}, left: map[int]time.Time{}}
}

func (t *slotTurnover) recordEntry(slot int, token int64, now time.Time) {
	left, used := t.left[slot]
	if !used {
		if _, wasEntered := t.first[slot]; !wasEntered {
			t.first[slot] = now
		}
		return
	}
	g := Gap{Token: token, Left: left, Entered: now}
	if t.count < maxGaps {
		t.gaps = append(t.gaps, g)
	} else {
		t.gaps[t.count%maxGaps] = g
	}
	t.count++
}

func (t *slotTurnover) recordExit(slot int, now time.Time) { t.left[slot] = now }

// idleAtStartAndEnd returns the times for which the slots 0 to slots - 1 were empty, summed over the slots: before is the
// time from begin to the first visit to a slot, after is the time from the last visit to end. For an unused slot, before
// is the whole time.
func (t *slotTurnover) idleAtStartAndEnd(slots int, begin, end time.Time) (before, after time.Duration) {
	for slot := range slots {
		first, used := t.first[slot]
		if !used {
			before += end.Sub(begin)
			continue
		}
		before += first.Sub(begin)
		if left, ok := t.left[slot]; ok {
			after += max(end.Sub(left), 0)
		}
	}
	return before, after
}

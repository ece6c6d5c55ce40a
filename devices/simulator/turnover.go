package simulator

import "time"

// maxGaps bounds the gaps that are remembered one by one.
const maxGaps = 1 << 14

// Gap is the time between two visits to one place.
type Gap struct {
	Token         int64 // of the one that came
	Left, Entered time.Time
}

// turnover is when places were left and entered again. Its owner guards it.
type turnover struct {
	first map[int]time.Time // place -> first entered
	left  map[int]time.Time // place -> last left
	gaps  []Gap             // the last maxGaps; a ring once it is full
	count int               // of all gaps
}

func newTurnover() turnover {
	return turnover{first: map[int]time.Time{}, left: map[int]time.Time{}}
}

func (t *turnover) enter(place int, token int64, now time.Time) {
	left, used := t.left[place]
	if !used {
		if _, known := t.first[place]; !known {
			t.first[place] = now
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

func (t *turnover) leave(place int, now time.Time) { t.left[place] = now }

// edges are the times, summed over places, before the first visit and after the
// last; a place that nobody used is all before.
func (t *turnover) edges(places int, from, to time.Time) (before, after time.Duration) {
	for place := range places {
		first, used := t.first[place]
		if !used {
			before += to.Sub(from)
			continue
		}
		before += first.Sub(from)
		if left, ok := t.left[place]; ok {
			after += max(to.Sub(left), 0)
		}
	}
	return before, after
}

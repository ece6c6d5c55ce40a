package api

import (
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// leastPace is the shortest time that is taken for a rate: the first tasks may end within
// milliseconds.
const leastPace = 5 * time.Second

// progressSteps are those between the beginning of a batch and now that are shown.
const progressSteps = 100

// progressOf is how a batch went on: its beginning, then what had ended at the end of each of
// 100 spans in which something did, then now. Of a batch that is over the last end is the last.
func progressOf(b store.Batch, steps []store.Progress) []operators.BatchProgress {
	now := store.Progress{At: b.ReadAt, Ended: endedIn(b, ""), Failed: b.Counts[store.Failed] + b.Counts[store.TimedOut]}
	began := store.Progress{At: began(b)}
	if began.At.After(now.At) {
		began.At = now.At
	}
	for len(steps) > 0 && steps[len(steps)-1].At.After(now.At) { // folded since the batch was read
		steps = steps[:len(steps)-1]
	}
	kept := append([]store.Progress{began}, lastOfSpans(steps, began.At, now.At)...)
	if over := openTasks(b) == 0 && kept[len(kept)-1].Ended == now.Ended; !over || len(kept) == 1 {
		kept = append(kept, now)
	}
	shown := make([]operators.BatchProgress, len(kept))
	for i, at := range kept {
		shown[i] = showProgress(kept[max(i-1, 0)], at)
	}
	return shown
}

func lastOfSpans(steps []store.Progress, from, to time.Time) (kept []store.Progress) {
	wide := max(to.Sub(from)/progressSteps, 1)
	span := func(p store.Progress) time.Duration { return min(p.At.Sub(from)/wide, progressSteps-1) }
	for i, step := range steps {
		if i == len(steps)-1 || span(steps[i+1]) != span(step) {
			kept = append(kept, step)
		}
	}
	return kept
}

func showProgress(before, p store.Progress) operators.BatchProgress {
	shown := operators.BatchProgress{At: stamp(p.At), Ended: p.Ended, Failed: p.Failed}
	shown.RatePerMinute = float64(p.Ended-before.Ended) / max(p.At.Sub(before.At), leastPace).Minutes()
	return shown
}

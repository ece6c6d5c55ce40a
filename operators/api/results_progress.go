package api

import (
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// leastPace is the shortest time over which a rate is computed, because the first tasks may end within milliseconds.
const leastPace = 5 * time.Second

// progressSteps is the number of spans into which the time between the beginning of a batch and now is divided.
const progressSteps = 100

// progressOf returns the progress of a batch: its beginning, then the state at the end of each span in which tasks ended,
// then the state now. For a batch that has ended, the last entry is the time when its last task ended.
func progressOf(b store.Batch, steps []store.Progress) []operators.BatchProgress {
	now := store.Progress{At: b.ReadAt, Ended: endedIn(b, ""), Failed: b.Counts[store.Failed] + b.Counts[store.TimedOut]}
	began := store.Progress{At: began(b)}
	if began.At.After(now.At) {
		began.At = now.At
	}
	for len(steps) > 0 && steps[len(steps)-1].At.After(now.At) { // counted after the batch was read
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

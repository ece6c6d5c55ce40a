package api

import (
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// minProgressRatePeriod is the shortest time over which the rate between two points of a progress is computed,
// because tasks may end within milliseconds. For the rate of a whole batch, the minimum is minRateSpan.
const minProgressRatePeriod = 5 * time.Second

// progressSteps is the number of spans into which the time between the beginning of a batch and now is divided.
const progressSteps = 100

// batchProgress returns the progress of batch: its beginning, then the state at the end of each span in which tasks ended, then the state
// now. steps is the progress that the ledger has stored, oldest first. For a batch that has ended, the last entry is the time when its
// last task ended.
func batchProgress(batch store.Batch, steps []store.Progress) []operators.BatchProgress {
	now := store.Progress{At: batch.ReadAt, Ended: countEndedTasks(batch, ""), Failed: batch.Counts[store.Failed] + batch.Counts[store.TimedOut]}
	began := store.Progress{At: earliestStart(batch)}
	if began.At.After(now.At) {
		began.At = now.At
	}
	for len(steps) > 0 && steps[len(steps)-1].At.After(now.At) { // counted after the batch was read
		steps = steps[:len(steps)-1]
	}
	kept := append([]store.Progress{began}, lastOfEachSpan(steps, began.At, now.At)...)
	if hasEnded := countOpenTasks(batch) == 0 && kept[len(kept)-1].Ended == now.Ended; !hasEnded || len(kept) == 1 {
		kept = append(kept, now)
	}
	shown := make([]operators.BatchProgress, len(kept))
	for i, at := range kept {
		shown[i] = toAPIProgress(kept[max(i-1, 0)], at)
	}
	return shown
}

// lastOfEachSpan divides the time from begin to end into progressSteps spans, and returns the last of steps in each span that has one.
func lastOfEachSpan(steps []store.Progress, begin, end time.Time) (kept []store.Progress) {
	spanLength := max(end.Sub(begin)/progressSteps, 1)
	span := func(p store.Progress) time.Duration { return min(p.At.Sub(begin)/spanLength, progressSteps-1) }
	for i, step := range steps {
		if i == len(steps)-1 || span(steps[i+1]) != span(step) {
			kept = append(kept, step)
		}
	}
	return kept
}

// toAPIProgress converts current to the form of the API, with the rate since previous.
func toAPIProgress(previous, current store.Progress) operators.BatchProgress {
	shown := operators.BatchProgress{At: apiTime(current.At), Ended: current.Ended, Failed: current.Failed}
	shown.RatePerMinute = float64(current.Ended-previous.Ended) / max(current.At.Sub(previous.At), minProgressRatePeriod).Minutes()
	return shown
}

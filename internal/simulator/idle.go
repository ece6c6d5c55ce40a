package simulator

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// SlotIdle is the time in which slots were empty, summed over the slots. It is 0 with Config.Endless or Config.FillUntil, and if a task did not
// end.
type SlotIdle struct {
	Start   time.Duration // from when the tasks may start until a slot was first entered; the whole run for a slot that was never entered
	Between time.Duration // between visits
	End     time.Duration // after a slot was last left
}

// Quantiles are quantiles of a duration. Zero means that nothing was measured.
type Quantiles struct{ P50, P99 time.Duration }

// String formats both quantiles.
func (q Quantiles) String() string {
	if q == (Quantiles{}) {
		return "not measured"
	}
	return fmt.Sprintf("p50 %s, p99 %s", roundDuration(q.P50), roundDuration(q.P99))
}

func roundDuration(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// Handoff describes how long it took until a slot went from one device to the next.
type Handoff struct {
	Server   Quantiles // release committed -> next device notified, measured by the dispatcher
	Total    Quantiles // slot left -> next device inside, measured by the external system
	Notified Quantiles // part of Total: slot left -> next device notified, or reporting without a notification
	Granted  Quantiles // part of Total: notified or reporting -> grant received
	Entered  Quantiles // part of Total: grant received -> inside
}

// measureHandoff joins the gaps that the external system measured with the times that the devices recorded.
func measureHandoff(gaps []Gap, start func(token int64) (Start, bool)) Handoff {
	var total, notified, granted, entered []time.Duration
	for _, g := range gaps {
		total = append(total, g.Entered.Sub(g.Left))
		s, ok := start(g.Token)
		if !ok {
			continue
		}
		asked := s.Woken
		if asked.IsZero() {
			asked = s.Asked
		}
		if asked.Before(g.Left) { // a report was held or in flight when the slot was left
			asked = g.Left
		}
		notified = append(notified, asked.Sub(g.Left))
		granted = append(granted, s.Granted.Sub(asked))
		entered = append(entered, g.Entered.Sub(s.Granted))
	}
	return Handoff{Total: quantiles(total), Notified: quantiles(notified), Granted: quantiles(granted), Entered: quantiles(entered)}
}

func quantiles(times []time.Duration) Quantiles {
	if len(times) == 0 {
		return Quantiles{}
	}
	slices.Sort(times)
	at := func(q float64) time.Duration { return times[int(math.Ceil(q*float64(len(times))))-1] }
	return Quantiles{P50: at(0.50), P99: at(0.99)}
}

// longestDelays returns the longest delay of a task after its due time, and the longest wait. Due times assume that tasks start in their order,
// evenly over bound.
func longestDelays(starts []time.Time, from time.Time, bound time.Duration) (late, wait time.Duration) {
	for i, at := range starts {
		due := bound * time.Duration(i) / time.Duration(len(starts))
		late = max(late, at.Sub(from)-due)
		wait = max(wait, at.Sub(from))
	}
	return late, wait
}

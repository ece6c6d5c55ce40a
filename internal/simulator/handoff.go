package simulator

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Quantiles are the quantiles P50 and P99 of a duration. Both are 0 if nothing was measured.
type Quantiles struct{ P50, P99 time.Duration }

// String formats both quantiles.
func (q Quantiles) String() string {
	if q == (Quantiles{}) {
		return "not measured"
	}
	return fmt.Sprintf("p50 %s, p99 %s", q.P50.Round(10*time.Microsecond), q.P99.Round(10*time.Microsecond))
}

// Handoff has the durations of handoffs: the times until a slot that one device left was used by
// the next device.
type Handoff struct {
	Server   Quantiles // release committed -> next device notified, measured by the dispatcher
	Total    Quantiles // from the device leaving the slot to the next device inside, measured by the external system
	Notified Quantiles // part of Total: slot left -> next device notified, or reporting without a notification
	Granted  Quantiles // part of Total: notified or reporting -> grant received
	Entered  Quantiles // part of Total: grant received -> inside
}

// measureHandoff returns the durations of the handoffs in gaps. findStart returns how the device whose grant has this
// token began its task.
func measureHandoff(gaps []Gap, findStart func(token int64) (Start, bool)) (handoff Handoff) {
	var total, notified, granted, entered []time.Duration
	for _, g := range gaps {
		total = append(total, g.Entered.Sub(g.Left))
		s, ok := findStart(g.Token)
		if !ok {
			continue
		}
		asked := s.Woken
		if asked.IsZero() {
			asked = s.Asked
		}
		if asked.Before(g.Left) { // the next device's report was parked or in flight when the slot was left
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

// longestDelays returns the longest time from the due time of a start to its grant, and the longest time from begin to a grant. The due
// times of the starts are spread evenly over a period that starts at begin and has the length periodLength.
func longestDelays(starts []Start, begin time.Time, periodLength time.Duration) (longestDelay, longestWait time.Duration) {
	for i, s := range starts {
		due := periodLength * time.Duration(i) / time.Duration(len(starts))
		longestDelay = max(longestDelay, s.Granted.Sub(begin)-due)
		longestWait = max(longestWait, s.Granted.Sub(begin))
	}
	return longestDelay, longestWait
}

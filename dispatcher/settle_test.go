package dispatcher

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func TestAnEndingSettlesWhetherATaskRunsAgain(t *testing.T) {
	t.Parallel()
	base := store.EndedGrantFacts{
		MaxAttempts: 3, RetryOn: []string{"failed", "timed_out"}, OnLost: "retry", RetryBackoff: 10 * time.Second,
	}
	with := func(cause store.EndCause, change func(*store.EndedGrantFacts)) store.EndedGrantFacts {
		e := base
		e.Cause = cause
		if change != nil {
			change(&e)
		}
		return e
	}
	retry := func(delay time.Duration) store.NextTaskState {
		return store.NextTaskState{State: store.Pending, Counted: true, Delay: delay}
	}
	end := func(state store.TaskState) store.NextTaskState {
		return store.NextTaskState{State: state, Counted: true}
	}
	tests := map[string]struct {
		in   store.EndedGrantFacts
		want store.NextTaskState
	}{
		"success":                        {with(store.BySuccess, nil), end(store.Succeeded)},
		"success after a cancel":         {with(store.BySuccess, func(e *store.EndedGrantFacts) { e.CancelWhy = "cancelled" }), end(store.Succeeded)},
		"failure, attempts left":         {with(store.ByFailure, nil), retry(10 * time.Second)},
		"second failure backs off":       {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.Attempts = 1 }), retry(20 * time.Second)},
		"last failure":                   {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.Attempts = 2 }), end(store.Failed)},
		"failure, not retried":           {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.RetryOn = []string{"timed_out"} }), end(store.Failed)},
		"backoff is at most an hour":     {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.Attempts, e.MaxAttempts = 60, 100 }), retry(time.Hour)},
		"failure after a cancel":         {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.CancelWhy = "max_run" }), end(store.Cancelled)},
		"failure of a blocked device":    {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.CancelWhy = "blocked" }), end(store.Cancelled)},
		"rejected":                       {with(store.ByReject, nil), end(store.Failed)},
		"rejected after a cancel":        {with(store.ByReject, func(e *store.EndedGrantFacts) { e.CancelWhy = "cancelled" }), end(store.Cancelled)},
		"returned":                       {with(store.ByReturn, func(e *store.EndedGrantFacts) { e.RetryAfter = time.Minute }), store.NextTaskState{State: store.Pending, Delay: time.Minute, Returned: true}},
		"returned without a time":        {with(store.ByReturn, nil), store.NextTaskState{State: store.Pending, Delay: 10 * time.Second, Returned: true}},
		"tenth return":                   {with(store.ByReturn, func(e *store.EndedGrantFacts) { e.Returned, e.RetryAfter = 9, 1 }), store.NextTaskState{State: store.Pending, Delay: 1, Returned: true}},
		"eleventh counts as failure":     {with(store.ByReturn, func(e *store.EndedGrantFacts) { e.Returned = 10 }), retry(10 * time.Second)},
		"eleventh on last attempt":       {with(store.ByReturn, func(e *store.EndedGrantFacts) { e.Returned, e.Attempts = 10, 2 }), end(store.Failed)},
		"returned because of a pause":    {with(store.ByReturn, func(e *store.EndedGrantFacts) { e.CancelWhy, e.Returned, e.Attempts = "paused", 10, 2 }), store.NextTaskState{State: store.Pending}},
		"rejected during a pause":        {with(store.ByReject, func(e *store.EndedGrantFacts) { e.CancelWhy = "paused" }), end(store.Failed)},
		"lapsed during a pause":          {with(store.ByLapse, func(e *store.EndedGrantFacts) { e.CancelWhy = "paused" }), retry(10 * time.Second)},
		"lapsed":                         {with(store.ByLapse, nil), retry(10 * time.Second)},
		"lapsed on last attempt":         {with(store.ByLapse, func(e *store.EndedGrantFacts) { e.Attempts = 2 }), end(store.TimedOut)},
		"lapsed, lost tasks end":         {with(store.ByLapse, func(e *store.EndedGrantFacts) { e.OnLost = "fail" }), end(store.TimedOut)},
		"lapsed, not retried":            {with(store.ByLapse, func(e *store.EndedGrantFacts) { e.RetryOn = []string{"failed"} }), end(store.TimedOut)},
		"lapsed after a cancel":          {with(store.ByLapse, func(e *store.EndedGrantFacts) { e.CancelWhy = "cancelled" }), end(store.Cancelled)},
		"lapsed of a blocked device":     {with(store.ByLapse, func(e *store.EndedGrantFacts) { e.CancelWhy = "blocked" }), retry(10 * time.Second)},
		"one attempt only":               {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.MaxAttempts = 1 }), end(store.Failed)},
		"unless the batch asks for more": {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.Attempts, e.MaxAttempts, e.RetryBackoff = 5, 100, 6*time.Hour }), retry(6 * time.Hour)},
		"no backoff":                     {with(store.ByFailure, func(e *store.EndedGrantFacts) { e.RetryBackoff = 0 }), retry(0)},
		"released by an operator":        {with(store.ByOperator, nil), retry(10 * time.Second)},
		"released after task cancels":    {with(store.ByOperator, func(e *store.EndedGrantFacts) { e.CancelWhy = "cancelled" }), end(store.Cancelled)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			latest := func() float64 { return 1 } // the upper end of the jitter: the full backoff
			if diff := cmp.Diff(test.want, decideNextTaskState(test.in, latest)); diff != "" {
				t.Errorf("decideNextTaskState (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBackoffJittersItsLastHalf(t *testing.T) {
	t.Parallel()
	low := backoffDelay(10*time.Second, 2, func() float64 { return 0 })
	high := backoffDelay(10*time.Second, 2, func() float64 { return 0.999999 })
	if low != 20*time.Second || high <= 39*time.Second || high > 40*time.Second {
		t.Errorf("third attempt after %s to %s, want 20 s to 40 s", low, high)
	}
}

package decision

import (
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Codes of tasks that do not wait. The code of a task that has ended is its
// state.
const (
	CodeCancelling Code = "cancelling"
	CodeExpiring   Code = "expiring"
	CodeRunning    Code = "running"
	CodeLapsed     Code = "lease_over"
	CodeToStop     Code = "asked_to_stop"
	CodeLate       Code = "late_result"
)

// whyClosed returns why a pending task may not start any more.
func whyClosed(v store.TaskView) Cause {
	if v.Batch.CancelledAt != nil {
		return Cause{
			Code:   CodeCancelling,
			Detail: fmt.Sprintf("batch %d was cancelled at %s; the task ends within seconds", v.Batch.ID, At(*v.Batch.CancelledAt)),
			Remedy: NothingToDo,
		}
	}
	r := Cause{Code: CodeExpiring, Detail: fmt.Sprintf("batch %d is over; the task ends within seconds", v.Batch.ID)}
	switch {
	case past(v.Batch.NotAfter, v.Now):
		r.Detail = fmt.Sprintf("nothing of batch %d starts after %s; the task expires within seconds", v.Batch.ID, At(*v.Batch.NotAfter))
	case past(v.Task.NotAfter, v.Now):
		r.Detail = fmt.Sprintf("task %d does not start after %s; it expires within seconds", v.Task.ID, At(*v.Task.NotAfter))
	case overdue(v):
		r.Detail = fmt.Sprintf("task %d waited longer than max_wait of batch %d, which is %s; it expires within seconds", v.Task.ID, v.Batch.ID, v.Batch.MaxWait)
	}
	r, _ = tooLate(r, v)
	return r
}

// tooLate adds the remedy for a task that may not start any more because its time is over. It returns false if the
// time is not over.
func tooLate(c Cause, v store.TaskView) (Cause, bool) {
	retry := ActRetry.to(OfTask, v.Task.ID)
	switch {
	case past(v.Batch.NotAfter, v.Now):
		return c.by("set a later one, %s, then: %s", ActEditEnd.to(OfBatch, v.Batch.ID), retry), true
	case past(v.Task.NotAfter, v.Now):
		return c.by("a task keeps its own not_after: queue it in a new batch"), true
	case overdue(v):
		return c.by("allow a longer wait, %s, then: %s", ActEditMaxWait.to(OfBatch, v.Batch.ID), retry), true
	}
	return c, false
}

func past(end *time.Time, now time.Time) bool { return end != nil && !end.After(now) }

// overdue reports whether the task was never started and has waited longer than its batch allows.
func overdue(v store.TaskView) bool {
	from := v.Batch.CreatedAt
	for _, begin := range []*time.Time{v.Batch.NotBefore, v.Task.NotBefore} {
		if begin != nil && begin.After(from) {
			from = *begin
		}
	}
	return v.Batch.MaxWait > 0 && v.Task.Attempts+v.Task.Returned == 0 && !from.Add(v.Batch.MaxWait).After(v.Now)
}

// whyRunning describes the grant that is in force.
func whyRunning(v store.TaskView) []Cause {
	g := v.Running
	running := Cause{
		Code: CodeRunning, Until: g.LeaseUntil,
		Detail: fmt.Sprintf("device %s holds slot %d of pool %s since %s, attempt %d of %d; its lease ends at %s",
			g.Device, g.Slot, g.Pool, At(g.GrantedAt), g.Attempt, max(v.Batch.MaxAttempts, g.Attempt), At(g.LeaseUntil)),
	}.by("waits for its result; to stop it: %s", ActCancel.to(OfTask, g.Task))
	if g.Redelivered > 0 {
		running.Detail += fmt.Sprintf("; delivered %d times more, as the device reported without it", g.Redelivered)
	}
	causes := []Cause{running}
	if g.Remaining <= 0 {
		causes = append(causes, Cause{Code: CodeLapsed, Detail: "its lease is over; the slot is taken back within seconds", Remedy: NothingToDo})
	}
	if g.CancelWhy != "" {
		causes = append(causes, Cause{
			Code: CodeToStop, Until: g.LeaseUntil,
			Detail: fmt.Sprintf("the device is asked to stop%s: %s", asker(v), g.CancelWhy),
			Remedy: fmt.Sprintf("waits for its next report or the end of its lease; to free the slot at once, and perhaps exceed the cap: dispatcher pools release %s %d --now --reason R", g.Pool, g.Slot),
		})
	}
	return causes
}

// asker returns who requested the cancel of the task, and the reason that was given.
func asker(v store.TaskView) string {
	if v.CancelledBy == "" {
		return ""
	}
	by := " by " + v.CancelledBy
	if _, why, given := strings.Cut(v.CancelNote, "because: "); given {
		by += " because: " + why
	}
	return by
}

// whyEnded describes how the task ended. The code of the first cause is the state of the task.
func whyEnded(v store.TaskView) []Cause {
	r := Cause{Code: Code(v.Task.State), Detail: string(v.Task.State)}
	if v.Task.FinishedAt != nil {
		r.Detail += " at " + At(*v.Task.FinishedAt)
	}
	switch {
	case v.Task.State == store.Suppressed, v.Task.State == store.Expired && v.Task.Error != "":
		r.Detail += ": " + v.Task.Error
	case v.Task.State != store.Cancelled || v.CancelledBy == "":
	case v.Batch.CancelledAt != nil && v.CancelledBy == store.Canceller:
		r.Detail += " with its batch"
	default:
		r.Detail += asker(v)
	}
	r.Detail += "; " + lastAttempt(v)
	causes := []Cause{again(r, v)}
	if v.Late != nil {
		causes = append(causes, Cause{
			Code: CodeLate, Detail: "a result came at " + At(*v.Late) + ", when its grant was no longer in force; it is kept", Remedy: "nothing to do",
		})
	}
	return causes
}

// again adds to the cause how an ended task can be tried again.
func again(c Cause, v store.TaskView) Cause {
	switch {
	case v.Task.State == store.Succeeded:
		return c.by("nothing to do: it is done")
	case v.Batch.CancelledAt != nil:
		return c.by(fmt.Sprintf("batch %d was cancelled: queue the task in a new batch", v.Batch.ID))
	}
	if late, is := tooLate(c, v); is {
		return late
	}
	return c.by("to try it again: %s", ActRetry.to(OfTask, v.Task.ID))
}

func lastAttempt(v store.TaskView) string {
	if v.Last == nil {
		return "never attempted"
	}
	text := fmt.Sprintf("attempt %d of %d %s at %s", v.Last.Number, max(v.Batch.MaxAttempts, v.Last.Number), how(v.Last.EndedBy), At(v.Last.EndedAt))
	if v.Last.Error != "" {
		text += ": " + v.Last.Error
	}
	return text
}

// how returns the end cause of an attempt as words.
func how(cause store.EndCause) string {
	switch cause {
	case store.ByLapse:
		return "was lost (its lease ended without a report)"
	case store.ByOperator:
		return "was taken back by an operator"
	case store.ByReturn:
		return "was handed back by the device"
	case store.ByReject:
		return "was rejected by the device"
	}
	return string(cause)
}

// At returns a time as text for people: UTC, RFC 3339.
func At(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ago returns d as text such as "3 days ago", in the largest unit that fits at least twice.
func ago(d time.Duration) string {
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if d >= 2*unit.of {
			return fmt.Sprintf("%d %s ago", d/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%d s ago", max(d, 0)/time.Second)
}

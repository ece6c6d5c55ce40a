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

// explainClosed returns why a pending task may not start any more.
func explainClosed(v store.TaskView) Cause {
	if v.Batch.CancelledAt != nil {
		return Cause{
			Code:   CodeCancelling,
			Detail: fmt.Sprintf("batch %d was cancelled at %s; the task ends within seconds", v.Batch.ID, FormatTime(*v.Batch.CancelledAt)),
			Remedy: NothingToDo,
		}
	}
	r := Cause{Code: CodeExpiring, Detail: fmt.Sprintf("batch %d is over; the task ends within seconds", v.Batch.ID)}
	switch {
	case hasPassed(v.Batch.NotAfter, v.Now):
		r.Detail = fmt.Sprintf("no task of batch %d starts after %s; the task expires within seconds", v.Batch.ID, FormatTime(*v.Batch.NotAfter))
	case hasPassed(v.Task.NotAfter, v.Now):
		r.Detail = fmt.Sprintf("task %d does not start after %s; it expires within seconds", v.Task.ID, FormatTime(*v.Task.NotAfter))
	case exceedsMaxWait(v):
		r.Detail = fmt.Sprintf("task %d waited longer than max_wait of batch %d, which is %s; it expires within seconds", v.Task.ID, v.Batch.ID, v.Batch.MaxWait)
	}
	r, _ = addTooLateRemedy(r, v)
	return r
}

// addTooLateRemedy adds the remedy for a task that may not start any more because its time is over. It returns false if the
// time is not over.
func addTooLateRemedy(c Cause, v store.TaskView) (Cause, bool) {
	retry := ActRetry.actionOn(SubjectTask, v.Task.ID)
	switch {
	case hasPassed(v.Batch.NotAfter, v.Now):
		return c.withRemedy("set a later not_after: %s; then: %s", ActEditEnd.actionOn(SubjectBatch, v.Batch.ID), retry), true
	case hasPassed(v.Task.NotAfter, v.Now):
		return c.withRemedy("queue the task in a new batch: the not_after of a task cannot be changed"), true
	case exceedsMaxWait(v):
		return c.withRemedy("set a longer max_wait: %s; then: %s", ActEditMaxWait.actionOn(SubjectBatch, v.Batch.ID), retry), true
	}
	return c, false
}

func hasPassed(end *time.Time, now time.Time) bool { return end != nil && !end.After(now) }

// exceedsMaxWait reports whether the task was never started and has waited longer than its batch allows.
func exceedsMaxWait(v store.TaskView) bool {
	from := v.Batch.CreatedAt
	for _, begin := range []*time.Time{v.Batch.NotBefore, v.Task.NotBefore} {
		if begin != nil && begin.After(from) {
			from = *begin
		}
	}
	return v.Batch.MaxWait > 0 && v.Task.Attempts+v.Task.Returned == 0 && !from.Add(v.Batch.MaxWait).After(v.Now)
}

// explainRunning describes the grant that is in force.
func explainRunning(v store.TaskView) []Cause {
	g := v.RunningGrant
	running := Cause{
		Code: CodeRunning, Until: g.LeaseUntil,
		Detail: fmt.Sprintf("device %s holds slot %d of pool %s since %s, attempt %d of %d; its lease ends at %s",
			g.Device, g.Slot, g.Pool, FormatTime(g.GrantedAt), g.Attempt, max(v.Batch.MaxAttempts, g.Attempt), FormatTime(g.LeaseUntil)),
	}.withRemedy("wait for its result; to stop it: %s", ActCancel.actionOn(SubjectTask, g.Task))
	if g.Redelivered > 0 {
		running.Detail += fmt.Sprintf("; redelivered %d times, because reports of the device did not mention it", g.Redelivered)
	}
	causes := []Cause{running}
	if g.Remaining <= 0 {
		causes = append(causes, Cause{Code: CodeLapsed, Detail: "its lease is over; the slot is taken back within seconds", Remedy: NothingToDo})
	}
	if g.CancelWhy != "" {
		causes = append(causes, Cause{
			Code: CodeToStop, Until: g.LeaseUntil,
			Detail: fmt.Sprintf("the device is asked to stop%s: %s", cancelledByText(v), g.CancelWhy),
			Remedy: fmt.Sprintf("wait for its next report or the end of its lease; to free the slot at once, which can exceed the cap: dispatcher pools release %s %d --now --reason R", g.Pool, g.Slot),
		})
	}
	return causes
}

// cancelledByText returns who requested the cancel of the task, and the reason that was given.
func cancelledByText(v store.TaskView) string {
	if v.CancelledBy == "" {
		return ""
	}
	by := " by " + v.CancelledBy
	if _, why, hasReason := strings.Cut(v.CancelNote, "because: "); hasReason {
		by += " because: " + why
	}
	return by
}

// explainEnded describes how the task ended. The code of the first cause is the state of the task.
func explainEnded(v store.TaskView) []Cause {
	r := Cause{Code: Code(v.Task.State), Detail: string(v.Task.State)}
	if v.Task.FinishedAt != nil {
		r.Detail += " at " + FormatTime(*v.Task.FinishedAt)
	}
	switch {
	case v.Task.State == store.Suppressed, v.Task.State == store.Expired && v.Task.Error != "":
		r.Detail += ": " + v.Task.Error
	case v.Task.State != store.Cancelled || v.CancelledBy == "":
	case v.Batch.CancelledAt != nil && v.CancelledBy == store.Canceller:
		r.Detail += " with its batch"
	default:
		r.Detail += cancelledByText(v)
	}
	r.Detail += "; " + lastAttemptText(v)
	causes := []Cause{addRetryRemedy(r, v)}
	if v.LateResultAt != nil {
		causes = append(causes, Cause{
			Code: CodeLate, Detail: "a result arrived at " + FormatTime(*v.LateResultAt) + ", after its grant had ended; the result is kept", Remedy: "nothing to do",
		})
	}
	return causes
}

// addRetryRemedy adds to the cause how an ended task can be tried again.
func addRetryRemedy(c Cause, v store.TaskView) Cause {
	switch {
	case v.Task.State == store.Succeeded:
		return c.withRemedy("nothing to do: the task succeeded")
	case v.Batch.CancelledAt != nil:
		return c.withRemedy(fmt.Sprintf("batch %d was cancelled: queue the task in a new batch", v.Batch.ID))
	}
	if late, is := addTooLateRemedy(c, v); is {
		return late
	}
	return c.withRemedy("to retry it: %s", ActRetry.actionOn(SubjectTask, v.Task.ID))
}

func lastAttemptText(v store.TaskView) string {
	if v.LastAttempt == nil {
		return "never attempted"
	}
	text := fmt.Sprintf("attempt %d of %d %s at %s", v.LastAttempt.Number, max(v.Batch.MaxAttempts, v.LastAttempt.Number), endCauseText(v.LastAttempt.EndedBy), FormatTime(v.LastAttempt.EndedAt))
	if v.LastAttempt.Error != "" {
		text += ": " + v.LastAttempt.Error
	}
	return text
}

// endCauseText returns the end cause of an attempt as words.
func endCauseText(cause store.EndCause) string {
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

// FormatTime returns a time as text for people: UTC, RFC 3339.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// formatAgo returns d as text such as "3 days ago", in the largest unit that fits at least twice.
func formatAgo(d time.Duration) string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if d >= 2*unit.length {
			return fmt.Sprintf("%d %s ago", d/unit.length, unit.name)
		}
	}
	return fmt.Sprintf("%d s ago", max(d, 0)/time.Second)
}

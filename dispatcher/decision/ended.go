package decision

import (
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/store"
)

// These codes are for tasks that do not wait. The code of a task that has ended is its state.
const (
	CodeCancelling Code = "cancelling"
	CodeExpiring   Code = "expiring"
	CodeRunning    Code = "running"
	CodeLapsed     Code = "lease_over"
	CodeToStop     Code = "asked_to_stop"
	CodeLate       Code = "late_result"
)

func causeOfEnding(view store.TaskView) Cause {
	if view.Batch.CancelledAt != nil {
		return Cause{
			Code:   CodeCancelling,
			Detail: fmt.Sprintf("batch %d was cancelled at %s; the task ends within seconds", view.Batch.ID, FormatTime(*view.Batch.CancelledAt)),
			Remedy: NothingToDo,
		}
	}
	r := Cause{Code: CodeExpiring, Detail: fmt.Sprintf("batch %d is over; the task ends within seconds", view.Batch.ID)}
	switch {
	case hasPassed(view.Batch.NotAfter, view.Now):
		r.Detail = fmt.Sprintf("no task of batch %d starts after %s; the task expires within seconds", view.Batch.ID, FormatTime(*view.Batch.NotAfter))
	case hasPassed(view.Task.NotAfter, view.Now):
		r.Detail = fmt.Sprintf("task %d does not start after %s; it expires within seconds", view.Task.ID, FormatTime(*view.Task.NotAfter))
	case exceedsMaxWait(view):
		r.Detail = fmt.Sprintf("task %d waited longer than max_wait of batch %d, which is %s; it expires within seconds", view.Task.ID, view.Batch.ID, view.Batch.MaxWait)
	}
	r, _ = addTooLateRemedy(r, view)
	return r
}

// addTooLateRemedy returns cause with the remedy for a task whose time limit has passed. isTooLate is false if no limit has passed.
func addTooLateRemedy(cause Cause, view store.TaskView) (withRemedy Cause, isTooLate bool) {
	retry := ActRetry.actionOn(SubjectTask, view.Task.ID)
	switch {
	case hasPassed(view.Batch.NotAfter, view.Now):
		return cause.withRemedy("set a later not_after: %s; then: %s", ActEditEnd.actionOn(SubjectBatch, view.Batch.ID), retry), true
	case hasPassed(view.Task.NotAfter, view.Now):
		return cause.withRemedy("queue the task in a new batch: the not_after of a task cannot be changed"), true
	case exceedsMaxWait(view):
		return cause.withRemedy("set a longer max_wait: %s; then: %s", ActEditMaxWait.actionOn(SubjectBatch, view.Batch.ID), retry), true
	}
	return cause, false
}

// hasPassed reports whether now is at or after end. If end is nil, it returns false.
func hasPassed(end *time.Time, now time.Time) bool { return end != nil && !end.After(now) }

// exceedsMaxWait reports whether the view's task has never started and has waited for longer than max_wait of its batch. It is only for
// explanations. The SQL that ends the task repeats the rule (withinMaxWait in package store).
func exceedsMaxWait(view store.TaskView) bool {
	from := view.Batch.CreatedAt
	for _, begin := range []*time.Time{view.Batch.NotBefore, view.Task.NotBefore} {
		if begin != nil && begin.After(from) {
			from = *begin
		}
	}
	return view.Batch.MaxWait > 0 && !view.Task.Started && !from.Add(view.Batch.MaxWait).After(view.Now)
}

func explainRunning(view store.TaskView) []Cause {
	g := view.RunningGrant
	running := Cause{
		Code: CodeRunning, Until: g.LeaseUntil,
		Detail: fmt.Sprintf("device %s holds slot %d of pool %s since %s, attempt %d of %d; its lease ends at %s",
			g.Device, g.Slot, g.Pool, FormatTime(g.GrantedAt), g.Attempt, max(view.Batch.MaxAttempts, g.Attempt), FormatTime(g.LeaseUntil)),
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
			Detail: fmt.Sprintf("the device is asked to stop%s: %s", cancelledByText(view), g.CancelWhy),
			Remedy: fmt.Sprintf("wait for its next report or the end of its lease; to free the slot at once, which can exceed the cap: dispatcher pools release %s %d --now --reason R", g.Pool, g.Slot),
		})
	}
	return causes
}

func cancelledByText(view store.TaskView) string {
	if view.CancelledBy == "" {
		return ""
	}
	by := " by " + view.CancelledBy
	if _, why, hasReason := strings.Cut(view.CancelNote, "because: "); hasReason {
		by += " because: " + why
	}
	return by
}

// explainEnded describes how the view's task ended. The code of the first cause is the state of the task.
func explainEnded(view store.TaskView) []Cause {
	r := Cause{Code: Code(view.Task.State), Detail: string(view.Task.State)}
	if view.Task.FinishedAt != nil {
		r.Detail += " at " + FormatTime(*view.Task.FinishedAt)
	}
	switch {
	case view.Task.State == store.Suppressed, view.Task.State == store.Expired && view.Task.Error != "":
		r.Detail += ": " + view.Task.Error
	case view.Task.State != store.Cancelled || view.CancelledBy == "":
	case view.Batch.CancelledAt != nil && view.CancelledBy == store.Canceller:
		r.Detail += " with its batch"
	default:
		r.Detail += cancelledByText(view)
	}
	r.Detail += "; " + lastAttemptText(view)
	causes := []Cause{addRetryRemedy(r, view)}
	if view.LateResultAt != nil {
		causes = append(causes, Cause{
			Code: CodeLate, Detail: "a result arrived at " + FormatTime(*view.LateResultAt) + ", after its grant had ended; the result is kept", Remedy: "nothing to do",
		})
	}
	return causes
}

func addRetryRemedy(cause Cause, view store.TaskView) Cause {
	switch {
	case view.Task.State == store.Succeeded:
		return cause.withRemedy("nothing to do: the task succeeded")
	case view.Batch.CancelledAt != nil:
		return cause.withRemedy(fmt.Sprintf("batch %d was cancelled: queue the task in a new batch", view.Batch.ID))
	}
	if late, is := addTooLateRemedy(cause, view); is {
		return late
	}
	return cause.withRemedy("to retry it: %s", ActRetry.actionOn(SubjectTask, view.Task.ID))
}

func lastAttemptText(view store.TaskView) string {
	if view.LastAttempt == nil {
		return "never attempted"
	}
	text := fmt.Sprintf("attempt %d of %d %s at %s", view.LastAttempt.Number, max(view.Batch.MaxAttempts, view.LastAttempt.Number), endCauseText(view.LastAttempt.EndedBy), FormatTime(view.LastAttempt.EndedAt))
	if view.LastAttempt.Error != "" {
		text += ": " + view.LastAttempt.Error
	}
	return text
}

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

// FormatTime returns moment as text for people, in UTC, such as 2026-03-01 04:05:06Z.
func FormatTime(moment time.Time) string { return moment.UTC().Format(terminal.TimeLayout) }

// formatAgo returns a text such as "3 days ago". It uses the largest unit that gives a number of at least 2.
func formatAgo(elapsed time.Duration) string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if elapsed >= 2*unit.length {
			return fmt.Sprintf("%d %s ago", elapsed/unit.length, unit.name)
		}
	}
	return fmt.Sprintf("%d s ago", max(elapsed, 0)/time.Second)
}

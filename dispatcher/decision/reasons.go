package decision

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Codes of causes of waiting tasks that are not obstacles.
const (
	CodeRevoked       Code = "device_revoked"
	CodeOtherFirst    Code = "other_task_first"
	CodeDeviceUnknown Code = "device_unknown"
	CodeDeviceDeleted Code = "device_deleted"
	CodeDeviceUnseen  Code = "device_unseen"
	CodeDeviceSilent  Code = "device_silent"
	CodeNextReport    Code = "next_report"
)

const (
	silentAfter = 2               // number of report periods; a device without a report for longer is silent
	leastWait   = 0.4             // part of a report period; if the next report is due sooner, jitter decides and there is no estimate
	lateGrace   = 2 * time.Second // a device that is overdue by more than this is not expected to report soon
)

// NothingToDo is the remedy of a cause that passes by itself.
const NothingToDo = "nothing to do: it passes by itself"

// explainer writes the causes of one waiting task.
type explainer struct {
	store.TaskView
	standing  Standing
	candidate store.Candidate
	seen      time.Time     // when the device last reported; zero if never
	period    time.Duration // report period of an idle device
	turn      time.Duration // time until the task's turn in a full pool; 0 if unknown
	callers   store.Callers // bound of callers, as it applies to the task
}

// unsaid returns the cause of an obstacle that only a report can have. No explanation contains it.
func (x explainer) unsaid(o Obstacle) Cause {
	return Cause{Detail: string(o.Code), Remedy: NothingToDo}
}

func (x explainer) blocked(Obstacle) Cause {
	return Cause{Detail: fmt.Sprintf("device %s is blocked", x.Task.Device)}.by("unblock it: %s", ActUnblock.to(OfDevice, x.Task.Device))
}

func (x explainer) busy(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("device %s holds task %d on slot %d of pool %s, and one is all it may hold", x.Task.Device, x.Grant.Task, x.Grant.Slot, x.Grant.Pool),
	}.by("waits for its result or the end of its lease; to stop it: %s", ActCancel.to(OfTask, x.Grant.Task))
}

func (x explainer) poolPaused(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("pool %s is paused%s", x.Pool.Name, paused(x.Pool.PausedBy, x.Pool.PausedAt, x.Pool.PauseReason)),
	}.by("resume the pool: %s", ActResume.to(OfPool, x.Pool.Name))
}

func (x explainer) batchPaused(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("batch %d is paused%s", x.Batch.ID, paused(x.Batch.PausedBy, x.Batch.PausedAt, x.Batch.PauseReason)),
	}.by("resume the batch: %s", ActResume.to(OfBatch, x.Batch.ID))
}

func (x explainer) notBegun(o Obstacle) Cause {
	return Cause{Detail: fmt.Sprintf("batch %d does not begin before %s", x.Batch.ID, At(o.Until)), Remedy: NothingToDo}
}

func (x explainer) taskNotBegun(o Obstacle) Cause {
	return Cause{Detail: fmt.Sprintf("task %d does not begin before %s", x.Task.ID, At(o.Until)), Remedy: NothingToDo}
}

func (x explainer) backsOff(o Obstacle) Cause {
	return Cause{Detail: lastAttempt(x.TaskView) + "; it is tried again after " + At(o.Until), Remedy: NothingToDo}
}

func (x explainer) batchShut(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("the windows of batch %d are %s", x.Batch.ID, x.shut(x.candidate.Window)),
	}.by("waits for a window; others may be set: %s", ActEditWindows.to(OfBatch, x.Batch.ID))
}

func (x explainer) poolShut(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("the windows of pool %s are %s", x.Pool.Name, x.shut(x.candidate.PoolWindow)),
	}.by("waits for a window; others may be set: %s", ActEditWindows.to(OfPool, x.Pool.Name))
}

func (x explainer) standsStill(Obstacle) Cause {
	return Cause{Detail: "the ledger was restored: its pool grants nothing until every lease that the ledger may have lost is over", Remedy: NothingToDo}
}

func (x explainer) limited(o Obstacle) Cause {
	words := "waits until then"
	if o.Drops {
		words = "ends as suppressed, should its device ask for it before then"
	}
	return Cause{Detail: o.Detail, Policy: strings.TrimSpace(o.Allows + " by " + o.Policy)}.by(words+"; or change the policy: %s", x.editLimits(o.Owner))
}

func (x explainer) unavailable(o Obstacle) Cause {
	return Cause{
		Detail: cmp.Or(o.Detail, "Redis cannot be reached: nothing is granted, and how full the pool is cannot be told"),
		Remedy: cmp.Or(o.Remedy, "bring Redis back"),
	}
}

// full returns the cause of a full pool, with the task's position in the queue.
func (x explainer) full(Obstacle) Cause {
	r := Cause{
		Detail:   fmt.Sprintf("pool %s is full: %d of %d slots are held", x.Pool.Name, x.standing.Held, x.standing.Capacity),
		Position: x.standing.Position,
	}.by("waits for a free slot; or raise the capacity: %s", ActRaiseCapacity.to(OfPool, x.Pool.Name))
	if x.standing.Held < x.standing.Capacity {
		r.Detail += ", and what is free is offered to others, which are about to report"
	}
	if r.Position > 0 {
		r.Detail += fmt.Sprintf(", and it is at position %d of those who wait", r.Position)
	}
	r.Detail += x.lane()
	return r
}

// callersFull returns the cause of a pool whose callers hold as many slots as they may, with the number of callers
// that wait before this one.
func (x explainer) callersFull(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("callers hold %d of the %d slots of pool %s that they may hold, and %d of them wait before this one",
			x.callers.Held, *x.callers.Bound, x.Pool.Name, x.callers.Ahead),
		Position: x.callers.Ahead + 1,
	}.by("waits until a caller gives its slot back; or let callers hold more: %s", ActRaiseCallers.to(OfPool, x.Pool.Name))
}

// lane explains how the urgent batches of a full pool delay or advance the task.
func (x explainer) lane() string {
	lane := x.standing.Lane
	switch {
	case x.candidate.Urgent && lane.Room > 0:
		return fmt.Sprintf("; urgent: it goes before %d others", x.standing.Waiting-lane.Waiting)
	case x.candidate.Urgent && lane.Held > 0:
		return fmt.Sprintf("; urgent, but its lane's share of the pool (%d of %d) is in use: it waits by its weight", lane.Held+lane.Room, x.standing.Capacity)
	case !x.candidate.Urgent && lane.Room > 0 && lane.Waiting > 0:
		return "; an urgent batch goes first"
	}
	return ""
}

// editLimits returns the action that changes the policies of owner.
func (x explainer) editLimits(owner Subject) Action {
	switch {
	case owner == OfBatch:
		return ActEditLimits.to(OfBatch, x.Batch.ID)
	case owner == OfProfile && x.Device != nil:
		return ActEditLimits.to(OfProfile, x.Device.Profile)
	}
	return ActEditLimits.to(OfPool, x.Pool.Name)
}

// paused returns who paused something, since when and why, as far as this is known.
func paused(by string, since *time.Time, reason string) string {
	text := ""
	if by != "" {
		text += " by " + by
	}
	if since != nil {
		text += " since " + At(*since)
	}
	if reason != "" {
		text += " because: " + reason
	}
	return text
}

// shut describes how a window keeps the task from starting.
func (x explainer) shut(o store.Opening) string {
	switch until := opens(o, &x.candidate, x.Now); {
	case until.IsZero():
		return "closed; when they open again is being computed"
	case !o.From.After(x.Now):
		return fmt.Sprintf("open until %s, which is less than its lease of %s", At(o.Until), x.candidate.Lease)
	default:
		return "closed until " + At(until)
	}
}

func (x explainer) otherFirst(other store.Candidate) Cause {
	urgent := map[bool]string{true: "urgent "}
	return Cause{
		Code:   CodeOtherFirst,
		Detail: fmt.Sprintf("device %s is given task %d of %sbatch %d before this one", x.Task.Device, other.Task, urgent[other.Urgent], other.Batch),
	}.by("waits for that task; a higher priority goes first within a batch; to drop it: %s", ActCancel.to(OfTask, other.Task))
}

func (x explainer) revoked() Cause {
	return Cause{
		Code:   CodeRevoked,
		Detail: fmt.Sprintf("device %s has no valid token: its reports are refused", x.Task.Device),
	}.by("give it a new token: %s", ActNewToken.to(OfDevice, x.Task.Device))
}

// away returns a cause if the device does not report and so cannot get its task. A device that
// holds a grant may be silent until its lease ends, and a blocked device for longer.
func (x explainer) away() (r Cause, is bool) {
	name := x.Task.Device
	switch {
	case store.IsCaller(name): // a caller waits for its answer, or asks again before the task expires
		return Cause{}, false
	case x.Device == nil && x.Deleted:
		return Cause{
			Code:   CodeDeviceDeleted,
			Detail: fmt.Sprintf("device %s was deleted", name),
		}.by("register it again: %s; or drop the task: %s", ActRegister.to(OfDevice, name), ActCancel.to(OfTask, x.Task.ID)), true
	case x.Device == nil:
		return Cause{
			Code:   CodeDeviceUnknown,
			Detail: fmt.Sprintf("no device %s is registered: it was never created or imported, and has never reported", name),
		}.by("look whether the name is right; if it is, register the device: %s (with the fleet token, its first report registers it); or drop the task: %s",
			ActRegister.to(OfDevice, name), ActCancel.to(OfTask, x.Task.ID)), true
	case x.seen.IsZero():
		return Cause{
			Code:   CodeDeviceUnseen,
			Detail: fmt.Sprintf("device %s has never reported since it was registered, %s", name, ago(x.Now.Sub(x.Device.CreatedAt))),
			Remedy: "look whether the device runs, and has its token and the address of this dispatcher",
		}, true
	case x.Device.Blocked || x.Grant != nil || x.Now.Sub(x.seen) <= silentAfter*x.period+store.SeenWithin:
		return Cause{}, false
	}
	return Cause{
		Code:   CodeDeviceSilent,
		Detail: fmt.Sprintf("device %s last reported %s, at %s", name, ago(x.Now.Sub(x.seen)), At(x.seen)),
		Remedy: "look whether the device runs and reaches the dispatcher: only its own report can be granted anything",
	}, true
}

func (x explainer) nextReport() Cause {
	r := Cause{
		Code: CodeNextReport, Detail: "nothing stands in the way: it is granted with the next report of device " + x.Task.Device,
		EstimatedStart: x.start(), Remedy: NothingToDo,
	}
	if name, is := store.HolderName(x.Task.Device); is {
		r.Detail = "nothing stands in the way: it is granted with the next request of caller " + name
	}
	if x.standing.Offered > 0 {
		r.Detail += fmt.Sprintf("; a slot is kept for it for another %s", x.standing.Offered.Round(100*time.Millisecond))
	}
	return r
}

// start estimates the start of a task that waits only for its turn and for the next report of
// its device: the later of the two times. It is zero if there is no estimate.
func (x explainer) start() time.Time {
	turn := time.Duration(0)
	if x.standing.full() {
		if turn = x.turn; turn == 0 || x.standing.Capacity == 0 {
			return time.Time{}
		}
	}
	asks, known := x.nextAsk()
	if !known && turn < silentAfter*x.period { // after a longer turn, the device has reported in any case
		return time.Time{}
	}
	return x.Now.Add(max(turn, asks))
}

// nextAsk returns the time until the device reports again, and whether the time is known. For a
// device in the queue of a full pool, the queue has the time. For an idle device, the time includes
// jitter, so it is known only if the report is not due soon.
func (x explainer) nextAsk() (time.Duration, bool) {
	if x.standing.InQueue {
		return max(x.standing.Due, 0), x.standing.Due > -lateGrace
	}
	due := x.seen.Add(x.period).Sub(x.Now)
	return due, due > time.Duration(leastWait*float64(x.period))
}

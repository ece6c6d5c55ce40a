package decision

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// These codes are for causes that delay a task without being an obstacle.
const (
	CodeRevoked       Code = "device_revoked"
	CodeOtherFirst    Code = "other_task_first"
	CodeDeviceUnknown Code = "device_unknown"
	CodeDeviceDeleted Code = "device_deleted"
	CodeDeviceUnseen  Code = "device_unseen"
	CodeDeviceSilent  Code = "device_silent"
	CodeDeviceNoisy   Code = "device_noisy"
	CodeNextReport    Code = "next_report"
)

const (
	silentAfter  = 2               // number of report periods without a report, counted from silentSince, after which a device is silent
	minWaitShare = 0.4             // part of a report period; if the report of an idle device is due sooner, its time is too uncertain for an estimate
	lateGrace    = 2 * time.Second // if the report of a device in a queue is overdue by more than this, the time of the report is unknown
)

// NothingToDo is the text of the remedy of a cause that ends without an action.
const NothingToDo = "nothing to do: it passes by itself"

type causeWriter struct {
	store.TaskView
	status      PoolStatus
	candidate   store.Candidate
	lastReport  store.LastReport  // the last report of the device; zero if it never reported
	period      time.Duration     // report period of an idle device
	untilTurn   time.Duration     // time until the task's turn in a full pool; 0 if unknown
	callerBound store.CallerBound // how many slots callers hold and may hold, for the task of a caller
}

// reportOnlyCause returns the cause of an obstacle that exists only while a report is handled. No explanation contains it.
func (x causeWriter) reportOnlyCause(obstacle Obstacle) Cause {
	return Cause{Detail: string(obstacle.Code), Remedy: NothingToDo}
}

func (x causeWriter) blockedCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("device %s is blocked%s", x.Task.Device, pausedText(x.Device.BlockedBy, x.Device.BlockedAt, x.Device.BlockReason)),
	}.withRemedy("unblock it: %s", ActUnblock.actionOn(SubjectDevice, x.Task.Device))
}

func (x causeWriter) busyCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("device %s holds task %d on slot %d of pool %s; a device holds at most one task", x.Task.Device, x.Grant.Task, x.Grant.Slot, x.Grant.Pool),
	}.withRemedy("waits for its result or the end of its lease; to stop it: %s", ActCancel.actionOn(SubjectTask, x.Grant.Task))
}

func (x causeWriter) wrongWireCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("device %s last reported by hawkBit's DDI, and the payload of the task is no deployment that it could read", x.Task.Device),
	}.withRemedy("queue a batch whose payload is a deployment, or set metadata_only in the profile of the device and use payloads of at most 256 bytes; to end this task: %s", ActCancel.actionOn(SubjectTask, x.Task.ID))
}

func (x causeWriter) poolPausedCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("pool %s is paused%s", x.Pool.Name, pausedText(x.Pool.PausedBy, x.Pool.PausedAt, x.Pool.PauseReason)),
	}.withRemedy("resume the pool: %s", ActResume.actionOn(SubjectPool, x.Pool.Name))
}

func (x causeWriter) batchPausedCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("batch %d is paused%s", x.Batch.ID, pausedText(x.Batch.PausedBy, x.Batch.PausedAt, x.Batch.PauseReason)),
	}.withRemedy("resume the batch: %s", ActResume.actionOn(SubjectBatch, x.Batch.ID))
}

func (x causeWriter) batchNotBegunCause(obstacle Obstacle) Cause {
	return Cause{Detail: fmt.Sprintf("batch %d does not start before %s", x.Batch.ID, FormatTime(obstacle.Until)), Remedy: NothingToDo}
}

func (x causeWriter) taskNotBegunCause(obstacle Obstacle) Cause {
	return Cause{Detail: fmt.Sprintf("task %d does not start before %s", x.Task.ID, FormatTime(obstacle.Until)), Remedy: NothingToDo}
}

func (x causeWriter) backoffCause(obstacle Obstacle) Cause {
	return Cause{Detail: lastAttemptText(x.TaskView) + "; it is retried after " + FormatTime(obstacle.Until), Remedy: NothingToDo}
}

func (x causeWriter) batchWindowClosedCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("the windows of batch %d are %s", x.Batch.ID, x.windowText(x.candidate.Window)),
	}.withRemedy("wait for a window to open; to set other windows: %s", ActEditWindows.actionOn(SubjectBatch, x.Batch.ID))
}

func (x causeWriter) poolWindowClosedCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("the windows of pool %s are %s", x.Pool.Name, x.windowText(x.candidate.PoolWindow)),
	}.withRemedy("wait for a window to open; to set other windows: %s", ActEditWindows.actionOn(SubjectPool, x.Pool.Name))
}

func (x causeWriter) standstillCause(Obstacle) Cause {
	return Cause{Detail: "the ledger was restored: the pool makes no grant until every lease that the restored ledger may not know is over", Remedy: NothingToDo}
}

func (x causeWriter) limitedCause(obstacle Obstacle) Cause {
	words := "wait until then; or change the policy: %s"
	if obstacle.DropsTask {
		words = "the task ends as suppressed if its device asks for it before then; to prevent this, change the policy: %s"
	}
	return Cause{Detail: obstacle.Detail, Policy: strings.TrimSpace(obstacle.Allows + " by " + obstacle.Policy)}.withRemedy(words, x.editLimitsAction(obstacle.Owner))
}

func (x causeWriter) unavailableCause(obstacle Obstacle) Cause {
	return Cause{
		Detail: cmp.Or(obstacle.Detail, "Redis cannot be reached: nothing is granted, and the number of free slots is unknown"),
		Remedy: cmp.Or(obstacle.Remedy, "start Redis, or repair the connection to it"),
	}
}

func (x causeWriter) poolFullCause(Obstacle) Cause {
	r := Cause{
		Detail:   fmt.Sprintf("pool %s is full: %d of %d slots are held", x.Pool.Name, x.status.Held, x.status.Capacity),
		Position: x.status.Position,
	}.withRemedy("wait for a free slot; or raise the capacity: %s", ActRaiseCapacity.actionOn(SubjectPool, x.Pool.Name))
	if x.status.Held < x.status.Capacity {
		r.Detail += ", and the free slots are offered to other waiters, which are about to report"
	}
	if r.Position > 0 {
		r.Detail += fmt.Sprintf(", and it is at position %d in the queue", r.Position)
	}
	r.Detail += x.urgentLaneText()
	return r
}

func (x causeWriter) callersFullCause(Obstacle) Cause {
	return Cause{
		Detail: fmt.Sprintf("callers hold %d of the %d slots of pool %s that they may hold, and %d callers wait before this one",
			x.callerBound.Held, *x.callerBound.Bound, x.Pool.Name, x.callerBound.Ahead),
		Position: x.callerBound.Ahead + 1,
	}.withRemedy("wait until a caller gives its slot back; or raise the maximum for callers: %s", ActRaiseCallers.actionOn(SubjectPool, x.Pool.Name))
}

// urgentLaneText explains how urgent batches change the place of the task in the queue of a full pool.
func (x causeWriter) urgentLaneText() string {
	lane := x.status.Lane
	switch {
	case x.candidate.Urgent && lane.Room > 0:
		return fmt.Sprintf("; urgent: it goes before %d other waiters", x.status.Waiting-lane.Waiting)
	case x.candidate.Urgent && lane.Held > 0:
		return fmt.Sprintf("; urgent, but the urgent lane's share of the pool (%d of %d slots) is in use: it waits by the weight of its batch", lane.Held+lane.Room, x.status.Capacity)
	case !x.candidate.Urgent && lane.Room > 0 && lane.Waiting > 0:
		return "; an urgent batch goes first"
	}
	return ""
}

func (x causeWriter) editLimitsAction(owner Subject) Action {
	switch {
	case owner == SubjectBatch:
		return ActEditLimits.actionOn(SubjectBatch, x.Batch.ID)
	case owner == SubjectProfile && x.Device != nil:
		return ActEditLimits.actionOn(SubjectProfile, x.Device.Profile)
	}
	return ActEditLimits.actionOn(SubjectPool, x.Pool.Name)
}

func pausedText(actor string, since *time.Time, reason string) string {
	text := ""
	if actor != "" {
		text += " by " + actor
	}
	if since != nil {
		text += " since " + FormatTime(*since)
	}
	if reason != "" {
		text += " because: " + reason
	}
	return text
}

// windowText says until when the windows of a pool or a batch keep the task from its start. opening is their current or next opening.
func (x causeWriter) windowText(opening store.Opening) string {
	switch until := windowRetryTime(opening, &x.candidate, x.Now); {
	case until.IsZero():
		return "closed; the next opening is being computed"
	case !opening.From.After(x.Now):
		return fmt.Sprintf("open until %s, which is less than its lease of %s away", FormatTime(opening.Until), x.candidate.Lease)
	default:
		return "closed until " + FormatTime(until)
	}
}

func (x causeWriter) otherTaskFirstCause(other store.Candidate) Cause {
	urgent := map[bool]string{true: "urgent "}
	return Cause{
		Code:   CodeOtherFirst,
		Detail: fmt.Sprintf("device %s is given task %d of %sbatch %d before this one", x.Task.Device, other.Task, urgent[other.Urgent], other.Batch),
	}.withRemedy("wait for that task; within a batch, a higher priority goes first; to cancel that task: %s", ActCancel.actionOn(SubjectTask, other.Task))
}

func (x causeWriter) revokedCause() Cause {
	return Cause{
		Code:   CodeRevoked,
		Detail: fmt.Sprintf("device %s has no valid token: its reports are refused", x.Task.Device),
	}.withRemedy("give it a new token: %s", ActNewToken.actionOn(SubjectDevice, x.Task.Device))
}

// deviceSilentCause returns a cause if the device does not report. A device that holds a grant may report late, and a blocked device reports
// rarely. Neither counts as silent.
func (x causeWriter) deviceSilentCause() (cause Cause, isSilent bool) {
	name := x.Task.Device
	switch {
	case store.IsCaller(name): // a caller waits for its answer, or asks again before the task expires
		return Cause{}, false
	case x.Device == nil && x.Deleted:
		return Cause{
			Code:   CodeDeviceDeleted,
			Detail: fmt.Sprintf("device %s was deleted", name),
		}.withRemedy("register it again: %s; or cancel the task: %s", ActRegister.actionOn(SubjectDevice, name), ActCancel.actionOn(SubjectTask, x.Task.ID)), true
	case x.Device == nil:
		return Cause{
			Code:   CodeDeviceUnknown,
			Detail: fmt.Sprintf("device %s is not registered: it was never created or imported, and has never reported", name),
		}.withRemedy("check the name; if the name is right, register the device: %s (with the fleet token, its first report registers it); or cancel the task: %s",
			ActRegister.actionOn(SubjectDevice, name), ActCancel.actionOn(SubjectTask, x.Task.ID)), true
	case x.lastReport.At.IsZero():
		return Cause{
			Code:   CodeDeviceUnseen,
			Detail: fmt.Sprintf("device %s has never reported since it was registered, %s", name, formatAgo(x.Now.Sub(x.Device.CreatedAt))),
			Remedy: "check whether the device runs, and has its token and the address of this dispatcher",
		}, true
	case x.Device.Blocked || x.Grant != nil || x.Now.Sub(x.silentSince()) <= silentAfter*x.period+store.SeenPrecision:
		return Cause{}, false
	}
	return Cause{
		Code:   CodeDeviceSilent,
		Detail: fmt.Sprintf("device %s last reported %s, at %s", name, formatAgo(x.Now.Sub(x.lastReport.At)), FormatTime(x.lastReport.At)),
		Remedy: "check whether the device runs and reaches the dispatcher: a task is granted only to a report of its device",
	}, true
}

func (x causeWriter) deviceNoisyCause() Cause {
	return Cause{
		Code: CodeDeviceNoisy,
		Detail: fmt.Sprintf("device %s reports far too often, recorded at %s: its reports above the limit are refused with busy_server, also a report that could start the task",
			x.Task.Device, FormatTime(*x.Device.NoisyAt)),
		Remedy: "repair the device; its event device.noisy has the rate",
	}
}

// silentSince returns the time of the last report, or QuietUntil if the device was asked to report again later than after one period.
func (x causeWriter) silentSince() time.Time {
	if x.lastReport.QuietUntil.After(x.lastReport.At) {
		return x.lastReport.QuietUntil
	}
	return x.lastReport.At
}

func (x causeWriter) nextReportCause() Cause {
	r := Cause{
		Code: CodeNextReport, Detail: "nothing delays the task: it is granted with the next report of device " + x.Task.Device,
		EstimatedStart: x.estimateStart(), Remedy: NothingToDo,
	}
	if name, is := store.HolderName(x.Task.Device); is {
		r.Detail = "nothing delays the task: it is granted with the next request of caller " + name
	}
	if x.status.OfferLeft > 0 {
		r.Detail += fmt.Sprintf("; a slot is reserved for it for another %s", x.status.OfferLeft.Round(100*time.Millisecond))
	}
	return r
}

// estimateStart estimates the start of a task that waits only for its turn and for the next report of its device. It is zero if there is no
// estimate.
func (x causeWriter) estimateStart() time.Time {
	turn := time.Duration(0)
	if x.status.isFull() {
		if turn = x.untilTurn; turn == 0 || x.status.Capacity == 0 {
			return time.Time{}
		}
	}
	asks, isKnown := x.timeUntilNextReport()
	if !isKnown && turn < silentAfter*x.period { // after a longer turn, the device has reported in any case
		return time.Time{}
	}
	return x.Now.Add(max(turn, asks))
}

// timeUntilNextReport returns the time until the device reports again. The queue knows this time if the device waits in it. For any other
// device, the time is not exact because of jitter. Then isKnown is true only if the report is not due soon.
func (x causeWriter) timeUntilNextReport() (untilReport time.Duration, isKnown bool) {
	if x.status.InQueue {
		return max(x.status.ReportDueIn, 0), x.status.ReportDueIn > -lateGrace
	}
	due := x.silentSince().Add(x.period).Sub(x.Now)
	return due, due > time.Duration(minWaitShare*float64(x.period))
}

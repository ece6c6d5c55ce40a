package dispatcher

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// What keeps a task waiting beside the obstacles of obstacle.go.
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
	seenMemory  = 10 * time.Second // how long a replica may keep a last-seen time to itself
	silentAfter = 2                // report periods; a device that was quiet for longer is away
	leastWait   = 0.4              // of a report period: below it the jitter decides, and no estimate is given
	lateGrace   = 2 * time.Second  // a device that is later than this is not about to ask
)

const nothingToDo = "nothing to do: it passes by itself"

// explainer writes the reasons of one waiting task.
type explainer struct {
	store.TaskView
	line      poolLine
	candidate store.Candidate
	seen      time.Time     // when the device last reported; zero: never
	period    time.Duration // in which an idle device reports
	turn      time.Duration // until the task's turn in a full pool; 0: unknown
}

// obstacle says what stands in the way, and what would change it.
func (x explainer) obstacle(o Obstacle) Reason {
	r := Reason{Code: o.Code, Until: o.Until}
	switch o.Code {
	case CodeBlocked:
		r.Detail = fmt.Sprintf("device %s is blocked", x.Task.Device)
		r.Remedy = "unblock it: dispatcher devices unblock " + x.Task.Device
	case CodeBusy:
		r.Detail = fmt.Sprintf("device %s holds task %d on slot %d of pool %s, and one is all it may hold", x.Task.Device, x.Grant.Task, x.Grant.Slot, x.Grant.Pool)
		r.Remedy = fmt.Sprintf("waits for its result or the end of its lease; to stop it: dispatcher tasks cancel %d", x.Grant.Task)
	case CodePoolPaused:
		r.Detail = fmt.Sprintf("pool %s is paused%s", x.Pool.Name, paused(x.Pool.PausedBy, x.Pool.PausedAt, x.Pool.PauseReason))
		r.Remedy = "resume the pool: dispatcher pools resume " + x.Pool.Name
	case CodeBatchPaused:
		r.Detail = fmt.Sprintf("batch %d is paused%s", x.Batch.ID, paused(x.Batch.PausedBy, x.Batch.PausedAt, x.Batch.PauseReason))
		r.Remedy = fmt.Sprintf("resume the batch: dispatcher batches resume %d", x.Batch.ID)
	case CodeNotBefore:
		r.Detail = fmt.Sprintf("batch %d does not begin before %s", x.Batch.ID, at(o.Until))
		r.Remedy = nothingToDo
	case CodeBackoff:
		r.Detail = lastAttempt(x.TaskView) + "; it is tried again after " + at(o.Until)
		r.Remedy = nothingToDo
	case CodeBatchWindow:
		r.Detail = fmt.Sprintf("the windows of batch %d are %s", x.Batch.ID, x.shut(x.candidate.Window))
		r.Remedy = fmt.Sprintf("waits for a window; others may be set: dispatcher batches set %d --window W", x.Batch.ID)
	case CodePoolWindow:
		r.Detail = fmt.Sprintf("the windows of pool %s are %s", x.Pool.Name, x.shut(x.candidate.PoolWindow))
		r.Remedy = "waits for a window; others may be set: dispatcher pools set " + x.Pool.Name + " --window W"
	case CodeStandstill:
		r.Detail = "the ledger was restored: nothing is granted until every lease that it may have lost is over"
		r.Remedy = nothingToDo
	case CodeLimited:
		r.Detail = o.Detail
		r.Remedy = "waits until then; or change the policy: " + x.limits()
	case CodeUnavailable:
		r.Detail = cmp.Or(o.Detail, "Redis cannot be reached: nothing is granted, and how full the pool is cannot be told")
		r.Remedy = cmp.Or(o.Remedy, "bring Redis back")
	case CodeFull:
		x.full(&r)
	default:
		r.Detail, r.Remedy = string(o.Code), nothingToDo
	}
	return r
}

// full says how full the pool is, and where the task stands in its line.
func (x explainer) full(r *Reason) {
	r.Detail = fmt.Sprintf("pool %s is full: %d of %d slots are held", x.Pool.Name, x.line.held, x.line.capacity)
	if x.line.held < x.line.capacity {
		r.Detail += ", and what is free is offered to others, which are about to report"
	}
	r.Remedy = fmt.Sprintf("waits for a free slot; or raise the capacity: dispatcher pools set %s --capacity N", x.Pool.Name)
	if r.Position = x.line.position; r.Position > 0 {
		r.Detail += fmt.Sprintf(", and it is at position %d of those who wait", r.Position)
	}
}

// limits says where the policies stand that hold for the task.
func (x explainer) limits() string {
	var places []string
	if x.candidate.PoolLimits != nil {
		places = append(places, fmt.Sprintf("dispatcher pools set %s --limits @FILE", x.Pool.Name))
	}
	if x.candidate.Limits != nil {
		places = append(places, fmt.Sprintf("dispatcher batches set %d --limits @FILE", x.Batch.ID))
	}
	if x.candidate.ProfileLimits != nil && x.Device != nil {
		places = append(places, fmt.Sprintf("dispatcher profiles put %s --limits @FILE", x.Device.Profile))
	}
	return strings.Join(places, ", or ")
}

// paused is by whom, since when and why, as far as it is known.
func paused(by string, since *time.Time, reason string) string {
	text := ""
	if by != "" {
		text += " by " + by
	}
	if since != nil {
		text += " since " + at(*since)
	}
	if reason != "" {
		text += " because: " + reason
	}
	return text
}

// shut says how a window keeps the task from starting.
func (x explainer) shut(o store.Opening) string {
	switch until := opens(o, x.candidate, x.Now); {
	case until.IsZero():
		return "closed; when they open again is being computed"
	case !o.From.After(x.Now):
		return fmt.Sprintf("open until %s, which is less than its lease of %s", at(o.Until), x.candidate.Lease)
	default:
		return "closed until " + at(until)
	}
}

func (x explainer) otherFirst(other store.Candidate) Reason {
	return Reason{
		Code:   CodeOtherFirst,
		Detail: fmt.Sprintf("device %s is given task %d of batch %d before this one", x.Task.Device, other.Task, other.Batch),
		Remedy: fmt.Sprintf("waits for that task; a higher priority goes first within a batch; to drop it: dispatcher tasks cancel %d", other.Task),
	}
}

func (x explainer) revoked() Reason {
	return Reason{
		Code:   CodeRevoked,
		Detail: fmt.Sprintf("device %s has no valid token: its reports are refused", x.Task.Device),
		Remedy: "give it a new token: dispatcher devices token " + x.Task.Device,
	}
}

// away says whether the device is not there to ask for its task: a device that
// holds a grant may be quiet until its lease ends, a blocked one for longer.
func (x explainer) away() (r Reason, is bool) {
	name := x.Task.Device
	switch {
	case x.Device == nil && x.Deleted:
		return Reason{
			Code:   CodeDeviceDeleted,
			Detail: fmt.Sprintf("device %s was deleted", name),
			Remedy: fmt.Sprintf("register it again: dispatcher devices create %s; or drop the task: dispatcher tasks cancel %d", name, x.Task.ID),
		}, true
	case x.Device == nil:
		return Reason{
			Code:   CodeDeviceUnknown,
			Detail: fmt.Sprintf("no device %s is registered, and none has ever reported", name),
			Remedy: "switch the device on; or look whether its name is right",
		}, true
	case x.seen.IsZero():
		return Reason{
			Code:   CodeDeviceUnseen,
			Detail: fmt.Sprintf("device %s has never reported since it was registered, %s", name, ago(x.Now.Sub(x.Device.CreatedAt))),
			Remedy: "look whether the device runs, and has its token and the address of this dispatcher",
		}, true
	case x.Device.Blocked || x.Grant != nil || x.Now.Sub(x.seen) <= silentAfter*x.period+seenMemory:
		return Reason{}, false
	}
	return Reason{
		Code:   CodeDeviceSilent,
		Detail: fmt.Sprintf("device %s last reported %s, at %s", name, ago(x.Now.Sub(x.seen)), at(x.seen)),
		Remedy: "look whether the device runs and reaches the dispatcher: only its own report can be granted anything",
	}, true
}

func (x explainer) nextReport() Reason {
	r := Reason{
		Code: CodeNextReport, Detail: "nothing stands in the way: it is granted with the next report of device " + x.Task.Device,
		EstimatedStart: x.start(), Remedy: nothingToDo,
	}
	if x.line.offered > 0 {
		r.Detail += fmt.Sprintf("; a slot is kept for it for another %s", x.line.offered.Round(100*time.Millisecond))
	}
	return r
}

// start is when a task likely starts that only waits for its turn and for its
// device: when those before it had theirs, and the device asks. Zero where that
// cannot be known.
func (x explainer) start() time.Time {
	turn := time.Duration(0)
	if x.line.full() {
		if turn = x.turn; turn == 0 || x.line.capacity == 0 {
			return time.Time{}
		}
	}
	asks, known := x.nextAsk()
	if !known && turn < silentAfter*x.period { // by then it has asked, whenever it does
		return time.Time{}
	}
	return x.Now.Add(max(turn, asks))
}

// nextAsk is how long it takes until the device asks again, if that is known:
// to the line of a full pool it is, of an idle device only within the jitter.
func (x explainer) nextAsk() (time.Duration, bool) {
	if x.line.inLine {
		return max(x.line.due, 0), x.line.due > -lateGrace
	}
	due := x.seen.Add(x.period).Sub(x.Now)
	return due, due > time.Duration(leastWait*float64(x.period))
}

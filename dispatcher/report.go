package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/store"
)

// reportHandling carries one report through its steps and composes the reply.
type reportHandling struct {
	d                *Dispatcher
	reporter         *reporter
	report           devices.Report
	reply            devices.Reply
	mentioned        map[grantKey]bool // grants that the report mentions
	mustStop         bool              // the reply asks the device to stop a task that the report lists as running
	mayHaveMoreDrops bool              // after the last attempt, policies may drop more tasks of the device (end them as suppressed)
	endedLastTask    bool              // the recorded results show that the device has no open task left and is not blocked
}

// handleLimit limits the time to handle one report. It is shorter than the age at which reconciliation frees a slot without a grant
// (orphanAge of package upkeep), and shorter than the time in which a process must stop.
const handleLimit = 8 * time.Second

// HandleReport answers one report. It returns devices.ErrForbidden or devices.ErrRegistrationRate if the sender is not admitted, or
// devices.ErrUnavailable if nothing could be recorded. The reply reports all other problems. HandleReport does not stop when ctx ends, because a
// half-handled report could leave a slot without a grant. It returns within 8 s after it has read the mark of the device.
func (d *Dispatcher) HandleReport(ctx context.Context, caller devices.Caller, report devices.Report) (devices.Reply, error) {
	h, err := d.handleReport(ctx, caller, report, nil)
	if err != nil {
		return devices.Reply{}, err
	}
	d.metrics.countDenial(h)
	return h.reply, nil
}

// handleReport handles one report. If parkable is not nil and there is room, it enters parkable in ParkedReports, so that the report may be
// parked. It ends the wait of an older parked report of the device. The older report stays parked only if the sender cannot be admitted, or if
// the limit of lookups is reached.
func (d *Dispatcher) handleReport(ctx context.Context, caller devices.Caller, report devices.Report, parkable *waiters.ParkedReport) (*reportHandling, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: handling not started: %w", devices.ErrUnavailable, err)
	}
	check := d.checkMark(ctx, caller, report)
	switch {
	case check.isIdle:
		return d.answerFromMark(caller, report, parkable, check, decision.Choice{Reason: devices.ReasonNone}, 0), nil
	case check.isAtLookupLimit:
		return d.answerAtLookupLimit(caller, report), nil
	case check.mayWait:
		if h := d.answerWaitingDevice(ctx, caller, report, parkable, &check); h != nil {
			return h, nil
		}
	}
	defer check.endLookup()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleLimit)
	defer cancel()
	admitted, err := d.admitCaller(ctx, caller, report)
	if err != nil {
		return nil, err
	}
	h := &reportHandling{
		d: d, reporter: &reporter{d: d, caller: caller, view: admitted.view}, report: report, mentioned: make(map[grantKey]bool),
		reply: devices.Reply{Re: report.ID, Credential: admitted.credential},
	}
	h.reporter.replaceOlderReport(parkable)
	h.reporter.recordAdmission(admitted)
	seenAt, hasNewReach := h.reporter.seenAt(), admitted.reach != h.reporter.reach()
	err = h.runSteps(ctx)
	h.reporter.recordLastReport(seenAt, h.delayUntilNextReport(), hasNewReach)
	if err != nil {
		return nil, err
	}
	d.correctMark(ctx, caller.Device, check, h)
	return h, nil
}

// runSteps records the contents of the report, and then tries to get the next task for the device. If a part of the contents cannot be
// recorded, the other parts are still recorded, but no task is granted.
func (h *reportHandling) runSteps(ctx context.Context) error {
	trouble := errors.Join(h.recordResults(ctx), h.renewRunningTasks(ctx), h.mergeAttributes(ctx))
	if trouble == nil && hasMoreThanTaskRequest(h.report) && (!hasOnlyResults(h.report) || !h.endedLastTask) {
		trouble = h.reporter.rereadView(ctx)
	}
	if trouble != nil {
		return h.replyUnavailable(trouble)
	}
	h.addCancelOfUnmentionedGrant()
	h.tryToGrantNextTask(ctx, nil, nil)
	return nil
}

// replyUnavailable ends the handling of the report after a step has failed with stepErr. If the reply already has an acknowledgement, a
// renewal or a cancel, the reply is sent with the reason "unavailable". Otherwise replyUnavailable returns stepErr, and the device must send
// the report again.
func (h *reportHandling) replyUnavailable(stepErr error) error {
	if len(h.reply.Acks)+len(h.reply.Renewed)+len(h.reply.Cancel) == 0 {
		return stepErr
	}
	h.d.log.Warn("report answered without a decision", "err", stepErr)
	h.replyWithoutTask(decision.Choice{Reason: devices.ReasonUnavailable}, 0)
	return nil
}

// hasMoreThanTaskRequest reports whether a report contains more than the request for a task. Its contents are recorded before the tasks of the
// device are read.
func hasMoreThanTaskRequest(report devices.Report) bool {
	return len(report.Results)+len(report.Running) > 0 || report.Attributes != nil
}

func hasOnlyResults(report devices.Report) bool {
	isInvalid := func(r devices.Result) bool { return r.Invalid != "" }
	return len(report.Results) > 0 && len(report.Running) == 0 && report.Attributes == nil && !slices.ContainsFunc(report.Results, isInvalid)
}

func (d *Dispatcher) readFullView(ctx context.Context, device devices.ID) (store.DeviceView, error) {
	return d.readView(ctx, device, true)
}

func (d *Dispatcher) readView(ctx context.Context, device devices.ID, isFull fullView) (store.DeviceView, error) {
	asked := d.config.Now()
	view, err := d.ledgerCalls.views.Do(ctx, isFull, string(device))
	d.outages.ledger.recordCall(err, asked)
	if err != nil {
		return store.DeviceView{}, fmt.Errorf("%w: reading the device: %w", devices.ErrUnavailable, err)
	}
	return view, nil
}

// canReplyNameReport reports whether the reply can name the report that it answers. If it cannot, the device gets no task.
func canReplyNameReport(caller devices.Caller, report devices.Report) bool {
	return report.ID != "" || caller.Via != devices.ViaSession
}

func (h *reportHandling) mergeAttributes(ctx context.Context) error {
	if h.report.Attributes == nil {
		return nil
	}
	err := h.d.config.Store.MergeAttributes(ctx, string(h.reporter.caller.Device), h.report.Attributes)
	if errors.Is(err, store.ErrTooLarge) {
		// This failure is not returned as an error, because an error would discard the results in the same report.
		h.reply.Code = devices.CodeAttributesTooLarge
		h.reply.Detail = fmt.Sprintf("attributes: at most %d keys and %d bytes after the merge; the stored attributes are unchanged", devices.MaxAttributeKeys, devices.MaxAttributes)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: merging attributes: %w", devices.ErrUnavailable, err)
	}
	return nil
}

// addCancelOfUnmentionedGrant adds an entry to `cancel` of the reply if the device's grant must stop and the report does not mention it.
func (h *reportHandling) addCancelOfUnmentionedGrant() {
	g := h.reporter.view.Grant
	if g == nil || g.CancelWhy == "" || h.mentioned[grantKey{g.Task, g.Token}] {
		return
	}
	h.reply.Cancel = append(h.reply.Cancel, devices.Cancel{Task: g.Task, Token: g.Token, Why: g.CancelWhy})
}

// tryToGrantNextTask tries to get the next task for the device, and writes the outcome into the reply. offeredPools are the pools that are known
// to offer a slot to the device. steps records the handoff that woke the report, or is nil.
func (h *reportHandling) tryToGrantNextTask(ctx context.Context, offeredPools []string, steps *waiters.Steps) {
	a := grantAttempt{
		d: h.d, reporter: h.reporter, acceptsTask: h.report.Accept, canNameReport: canReplyNameReport(h.reporter.caller, h.report),
		mentioned: h.mentioned, mustStop: h.mustStop, nonce: newNonce(), steps: steps,
		offeredPools: offeredPools, full: make(map[string]bool), obstacles: make(map[int64]decision.Obstacle),
	}
	a.runUntilDecided(ctx)
	h.mayHaveMoreDrops = a.mayHaveMoreDrops
	if a.granted != nil {
		h.replyWithTask(*a.granted)
		return
	}
	if a.needsID { // from a reply that names no report, the device cannot compute the age of the reply
		h.reply.Code, h.reply.Detail = "id_required", "id: required over MQTT to get a task"
	}
	h.replyWithoutTask(a.refusal, a.untilTurn)
}

func (h *reportHandling) replyWithTask(grant store.Grant) {
	usable := h.d.usableLeaseTime(grant)
	h.reply.Reason, h.reply.Limited = devices.ReasonGranted, nil
	h.reply.Task = &devices.Task{
		ID: grant.Task, Token: grant.Token, Pool: grant.Pool, Slot: grant.Slot, Kind: grant.Kind, Payload: grant.Payload,
		Attempt: grant.Attempt, Redelivered: grant.Redelivered, LeaseMS: usable.Milliseconds(),
	}
	h.reply.ReportAfterMS = h.d.delayAfterGrant(grant.Pool, grant.Kind, usable).Milliseconds()
}

// replyWithoutTask writes a reply without a task. timeUntilTurn is the time after which a device in the queue of a full pool reports again. A
// device that runs a task is asked to report when the task is probably finished, and early enough to renew its lease.
func (h *reportHandling) replyWithoutTask(choice decision.Choice, timeUntilTurn time.Duration) {
	h.reply.Reason, h.reply.Limited = choice.Reason, nil
	if choice.Reason == devices.ReasonLimited {
		h.reply.Limited = devices.NewLimited(choice.Policy, choice.Until)
	}
	h.reply.ReportAfterMS = h.d.timing().DelayAfter(choice, h.reporter.view.Now, timeUntilTurn).Milliseconds()
	if g := h.reporter.view.Grant; g != nil && len(h.reply.Renewed) > 0 {
		h.reply.ReportAfterMS = min(h.reply.ReportAfterMS, h.d.delayWhileRunning(*g, h.reporter.view.Now).Milliseconds())
	}
	for _, r := range h.reply.Renewed {
		h.reply.ReportAfterMS = min(h.reply.ReportAfterMS, r.LeaseMS/2)
	}
}

func (h *reportHandling) delayUntilNextReport() time.Duration {
	return time.Duration(h.reply.ReportAfterMS) * time.Millisecond
}

func (h *reportHandling) foundNoWork() bool {
	view := h.reporter.view
	return h.reply.Reason == devices.ReasonNone && len(view.Candidates) == 0 && view.Grant == nil && view.Device != nil
}

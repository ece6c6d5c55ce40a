package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Leases is a Dispatcher with the operations that callers use to lease slots. It handles a request of a holder like the report of a device.
type Leases struct{ *Dispatcher }

// Leaser identifies a caller: a program that requests or holds leases. One caller can have many holders.
type Leaser struct {
	Name  string            // name of its token
	Token [sha256.Size]byte // hash of the caller's token; the zero value means that the program is a part of this process
}

// callerForHolder returns the sender of a report that this caller makes for one of its holders. holderName is the name of the holder.
func (l Leaser) callerForHolder(holderName string) devices.Caller {
	return devices.Caller{Device: devices.ID(holderName), Via: devices.ViaLease, Token: l.Token}
}

// isOwnHolder reports whether device is the name of a holder of this caller (store.HolderDevice).
func (l Leaser) isOwnHolder(device string) bool {
	return strings.HasPrefix(device, store.HolderDevice(l.Name, ""))
}

// LeaseRequest is a request for a slot of a pool.
type LeaseRequest struct {
	Leaser

	Pool     string
	Holder   string          // name of the holder; if it is empty, Acquire makes a name
	Lease    time.Duration   // length of the lease; 0 means the default of the pool
	Metadata json.RawMessage // nil means no metadata
	Wait     time.Duration   // maximum wait for a slot; if it is 0, Acquire tries once, and without a slot it deletes the lease
	OnPark   func()          // is called when the wait begins

	unnamed bool // the request named no holder, so Acquire made a name; the caller learns the name only from the answer
}

// Lease is a lease that is open or has ended.
type Lease struct {
	Task       store.Task
	Grant      *store.Grant   // nil if the lease waits or has ended
	Usable     time.Duration  // time for which the slot may be used; it begins when Waited has passed since the caller sent the request
	Waited     time.Duration  // time for which the answer was delayed (held_ms)
	Cause      decision.Cause // reason why the lease holds no slot
	RetryAfter time.Duration  // time after which the caller of a waiting lease asks again
}

// LostError is the error for a lease that has ended, or whose holder must stop.
type LostError struct {
	Why    string // ended, reaped, released or stale; if Cancel is true, the reason to stop: cancelled or max_run
	Detail string // for people
	Cancel bool   // the lease is still held, and its holder must stop
}

// Error returns a text that contains Detail.
func (e *LostError) Error() string { return "the lease is lost: " + e.Detail }

// ErrLeaseToken is the error of a request to end a held lease without its token. leaseProblem of package api has the text for the caller.
var ErrLeaseToken = errors.New("token: required, because the lease is held")

// ErrUnconfirmed is the error of a request with Wait 0 if the ledger or the semaphore cannot confirm a slot of the pool now.
// leaseProblem of package api has the text for the caller.
var ErrUnconfirmed = errors.New("no slot can be confirmed now")

const (
	// noWaitExpiry is the time after which the lease of a request with Wait 0 expires if it got no slot. It matters only if the request
	// ended before deleteNoWaitLease could delete the lease.
	noWaitExpiry = 10 * time.Second
	// boundedRetryInterval is the interval at which a waiting caller tries again in a pool that limits the slots of callers. In such a pool
	// the caller may be in no queue, and the message that another lease ended may be lost.
	boundedRetryInterval = 5 * time.Second
)

// Acquire gets a slot for the holder of a caller, or returns why there is none. If the holder has a lease already, Acquire returns it or
// continues its wait. Acquire returns store.ErrUnknownPool, store.ErrExists (the holder has a lease in another pool), *LostError or
// devices.ErrUnavailable.
func (d Leases) Acquire(ctx context.Context, request LeaseRequest) (Lease, error) {
	began := d.config.Now()
	if request.unnamed = request.Holder == ""; request.unnamed {
		request.Holder = newNonce()
	}
	got, mustRetry, err := d.acquire(ctx, request, began)
	if mustRetry {
		got, _, err = d.acquire(ctx, request, began)
	}
	return got, err
}

// acquire makes one attempt to get a slot. began is the time at which the request arrived. If mustRetry is true, the lease changed during
// the attempt, and acquire must be called again.
func (d Leases) acquire(ctx context.Context, request LeaseRequest, began time.Time) (lease Lease, mustRetry bool, err error) {
	opened, err := d.openLease(ctx, request)
	if err != nil {
		return Lease{}, false, err
	}
	defer func() {
		if request.unnamed && (err != nil || ctx.Err() != nil) {
			d.endUnnamedLease(ctx, request, opened.Task)
		}
	}()
	opened, reply, err := d.askForLease(ctx, request, opened, began)
	d.shortenLeaseWait(ctx, request, opened, reply, began)
	if err != nil {
		d.deleteNoWaitLease(ctx, request, opened)
		return Lease{}, false, err
	}
	return d.leaseAfterReply(ctx, request, opened, reply, began)
}

// leaseAfterReply is called after the holder of the lease in opened was answered with reply. It reads the lease again and returns it. If
// mustRetry is true, the lease has changed since the reply, and acquire must be called again.
func (d Leases) leaseAfterReply(ctx context.Context, request LeaseRequest, opened store.LeaseTask, reply devices.Reply, began time.Time) (lease Lease, mustRetry bool, err error) {
	lease, err = d.readLease(ctx, opened.Task, began)
	switch {
	case err != nil:
		return Lease{}, false, err
	case lease.Grant != nil && lease.Usable >= d.config.LeaseMin:
		if reply.Task != nil && reply.Task.Redelivered == 0 {
			d.metrics.leases.WithLabelValues(request.Pool, "granted").Inc()
		}
		return lease, false, nil
	case lease.Grant == nil && lease.Task.State != store.Pending:
		return Lease{}, lease.Task.State == store.TimedOut, d.newLostError(ctx, lease.Task, 0) // timed out: the slot of the holder was just taken back
	case lease.Grant == nil && request.Wait == 0 && reply.Reason == devices.ReasonUnavailable && !d.isPoolInStandstill(ctx, opened.Task):
		d.deleteNoWaitLease(ctx, request, opened)
		return Lease{}, false, fmt.Errorf("%w: %w: pool %s", devices.ErrUnavailable, ErrUnconfirmed, request.Pool)
	}
	refused, err := d.leaseAfterRefusal(ctx, request, opened, lease, reply)
	// If the code is CodeRunning, another request of the holder got the slot just now.
	return refused, err == nil && lease.Grant == nil && refused.Cause.Code == decision.CodeRunning, err
}

func (d Leases) isPoolInStandstill(ctx context.Context, taskID int64) bool {
	e, err := d.Explainer.ExplainTask(ctx, taskID)
	return err == nil && e.Causes[0].Code == decision.CodeStandstill
}

func (d Leases) openLease(ctx context.Context, request LeaseRequest) (store.LeaseTask, error) {
	stay := noWaitExpiry
	if request.Wait > 0 {
		stay = request.Wait + store.PositionTTL
	}
	opened, err := d.config.Store.OpenLease(ctx, store.NewLease{
		Pool: request.Pool, Holder: store.HolderDevice(request.Name, request.Holder), Lease: request.Lease, Metadata: request.Metadata, WaitFor: stay,
	})
	if err != nil && !errors.Is(err, store.ErrUnknownPool) && !errors.Is(err, store.ErrExists) {
		err = fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	return opened, err
}

// askForLease reports as the holder until it is granted a slot, or until request.Wait has passed since the time began. It returns the last
// reply, and the lease as openLease last returned it.
func (d Leases) askForLease(ctx context.Context, request LeaseRequest, opened store.LeaseTask, began time.Time) (latest store.LeaseTask, lastReply devices.Reply, err error) {
	caller, report := request.callerForHolder(store.HolderDevice(request.Name, request.Holder)), devices.Report{ID: newNonce(), Accept: true}
	if request.Wait == 0 {
		reply, err := d.HandleReport(ctx, caller, report)
		return opened, reply, err
	}
	for wait, hasYielded := request.Wait, false; ; {
		if opened.HasCallerBound {
			wait = min(wait, boundedRetryInterval)
		}
		h, couldWait, err := d.handleWithWait(ctx, caller, report, wait, request.OnPark)
		if err != nil {
			return opened, devices.Reply{}, err
		}
		wait = request.Wait - d.config.Now().Sub(began)
		if !couldWait || ctx.Err() != nil || wait <= 0 || !mayStillGetSlot(h.reply) {
			return opened, h.reply, err
		}
		if hasYielded = hasYielded || h.reporter.hasYielded; hasYielded && !h.reporter.blockedAlone { // OpenLease gives the caller its place back
			rest := request
			rest.Wait = wait
			again, err := d.openLease(ctx, rest)
			if err != nil {
				return opened, h.reply, err
			}
			opened, hasYielded = again, false
		}
	}
}

// mayStillGetSlot reports whether the caller that received reply may get a slot if it waits longer. After ReasonNone the caller gets no slot,
// because its lease was ended, or because another request of the holder waits for the lease.
func mayStillGetSlot(reply devices.Reply) bool {
	return reply.Task == nil && reply.Reason != devices.ReasonNone && decision.WaitRuleFor(reply.Reason).MayPark
}

// shortenLeaseWait lets a waiting lease expire earlier if its caller disconnected or was answered before the end of its wait. Then the
// lease expires store.PositionTTL after the time at which the caller should ask again. If the caller asks again more than
// store.AskAgainWithin after that time, the callers behind it may go first.
func (d Leases) shortenLeaseWait(ctx context.Context, request LeaseRequest, opened store.LeaseTask, reply devices.Reply, began time.Time) {
	rest := request.Wait - d.config.Now().Sub(began)
	switch {
	case reply.Task != nil:
		return
	case request.Wait > 0 && rest <= 0: // the wait is over: the lease keeps the expiry that openLease set
		return
	case request.Wait == 0 && opened.Created: // deleteNoWaitLease deletes the lease
		return
	}
	after := min(max(rest, 0), time.Duration(reply.ReportAfterMS)*time.Millisecond)
	if ctx.Err() != nil {
		after = 0
	}
	if err := d.config.Store.SetLeaseWait(context.WithoutCancel(ctx), opened, store.PositionTTL+after); err != nil {
		d.log.WarnContext(ctx, "wait of a caller that disconnected not shortened; the caller stays in the queue for longer", "err", err)
	}
}

// endUnnamedLease ends the lease of a caller that got no answer. The caller did not name the holder, so it cannot ask for the lease again.
func (d Leases) endUnnamedLease(ctx context.Context, request LeaseRequest, taskID int64) {
	ctx = context.WithoutCancel(ctx)
	err := ErrLeaseToken
	for tries := 0; tries < 2 && errors.Is(err, ErrLeaseToken); tries++ { // the lease may be granted between the two calls
		var grant *store.Grant
		_, grant, _, err = d.config.Store.Task(ctx, taskID)
		switch {
		case err != nil:
		case grant != nil:
			err = d.End(ctx, request.Leaser, request.Pool, taskID, grant.Token)
		default:
			err = d.End(ctx, request.Leaser, request.Pool, taskID, 0)
		}
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		d.log.WarnContext(ctx, "lease of an unnamed holder not ended; it expires by itself", "lease", taskID, "err", err)
	}
}

// deleteNoWaitLease deletes the lease in opened if request has Wait 0 and has created this lease.
func (d Leases) deleteNoWaitLease(ctx context.Context, request LeaseRequest, opened store.LeaseTask) {
	if request.Wait > 0 || !opened.Created {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := d.config.Store.DropLease(ctx, opened); err != nil {
		d.log.WarnContext(ctx, "lease of a request without a wait not deleted; it expires by itself", "err", err)
	}
	d.Waiters.Offers.SendDeviceUpdate(store.HolderDevice(request.Name, request.Holder), slots.WaiterLeft, []string{request.Pool})
}

// readLease reads a lease, which the ledger stores as the task with this id. began is the time at which the request arrived.
func (d Leases) readLease(ctx context.Context, taskID int64, began time.Time) (Lease, error) {
	waited := d.config.Now().Sub(began)
	found, grant, _, err := d.config.Store.Task(ctx, taskID)
	if err != nil {
		return Lease{}, fmt.Errorf("%w: reading lease %d: %w", devices.ErrUnavailable, taskID, err)
	}
	got := Lease{Task: found, Grant: grant, Waited: waited}
	if grant != nil {
		got.Usable = d.usableLeaseTime(*grant)
	}
	return got, nil
}

// leaseAfterRefusal returns lease with the reason why it has no slot and the time after which the caller asks again. If request.Wait is 0,
// leaseAfterRefusal deletes the lease.
func (d Leases) leaseAfterRefusal(ctx context.Context, request LeaseRequest, opened store.LeaseTask, lease Lease, reply devices.Reply) (Lease, error) {
	defer d.deleteNoWaitLease(ctx, request, opened)
	e, err := d.Explainer.ExplainTask(ctx, opened.Task)
	if err != nil {
		return Lease{}, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	lease.Grant, lease.Cause = nil, e.Causes[0]
	lease.RetryAfter = max(time.Duration(reply.ReportAfterMS)*time.Millisecond, maxDelayAfterPark)
	if request.Wait == 0 {
		d.metrics.leases.WithLabelValues(request.Pool, "refused").Inc()
	}
	return lease, nil
}

// Renew extends the lease that the ledger stores as the task taskID, and that caller holds in pool with fencingToken. If leaseLength is 0, the
// lease keeps its length, and is extended only after a third of this length has passed. Before that, Renew succeeds and changes nothing. If
// leaseLength is not 0, it becomes the length of the lease, unless the lease would then end sooner. Renew returns store.ErrNotFound, *LostError
// or devices.ErrUnavailable.
func (d Leases) Renew(ctx context.Context, caller Leaser, pool string, taskID, fencingToken int64, leaseLength time.Duration) (Lease, error) {
	began := d.config.Now()
	leaseTask, _, err := d.readOwnLease(ctx, caller, pool, taskID)
	if err != nil {
		return Lease{}, err
	}
	reply, err := d.HandleReport(ctx, caller.callerForHolder(leaseTask.Device), devices.Report{
		ID: newNonce(), Running: []devices.Running{{Task: taskID, Token: fencingToken, Lease: leaseLength}},
	})
	if err != nil {
		return Lease{}, err
	}
	got, err := d.readLease(ctx, taskID, began)
	if err != nil {
		return Lease{}, err
	}
	if len(reply.Renewed) == 0 || got.Grant == nil || got.Grant.Token != fencingToken {
		lost := d.newLostError(ctx, got.Task, fencingToken)
		d.metrics.leases.WithLabelValues(pool, "lost").Inc()
		return Lease{}, lost
	}
	d.metrics.leases.WithLabelValues(pool, "renewed").Inc()
	return got, nil
}

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

// Leases gives slots to callers. It is a Dispatcher with the operations on leases, and has no state of its own. The holder of
// a lease is not a device, but its requests are handled like the reports of a device.
type Leases struct{ *Dispatcher }

// Leaser identifies a caller: a program, not a device, that requests or holds leases. One caller can have many
// holders.
type Leaser struct {
	Name  string            // name of its token
	Token [sha256.Size]byte // hash of its token; the zero value means that the program is a part of this process
}

// asSender returns l as the sender of a report of the holder device.
func (l Leaser) asSender(device string) devices.Caller {
	return devices.Caller{Device: devices.ID(device), Via: devices.ViaLease, Token: l.Token}
}

// owns reports whether device is a holder of l.
func (l Leaser) owns(device string) bool {
	return strings.HasPrefix(device, store.HolderDevice(l.Name, ""))
}

// LeaseRequest is a request for a slot of a pool.
type LeaseRequest struct {
	Leaser

	Pool     string
	Holder   string          // name of the holder; if it is empty, Acquire makes a name
	Lease    time.Duration   // length of the lease; 0 means the default of the pool
	Metadata json.RawMessage // nil means no metadata
	Wait     time.Duration   // maximum wait for a slot; if it is 0, Acquire tries once and leaves nothing behind
	OnPark   func()          // is called when the wait begins

	unnamed bool // Holder was made for this request: the caller learns the name only from the answer
}

// Lease is a lease that is open or has ended.
type Lease struct {
	Task       store.Task
	Grant      *store.Grant   // nil if the lease waits or has ended
	Usable     time.Duration  // the slot may be used for this time, counted from the sending of the request plus Waited
	Waited     time.Duration  // time for which the answer was held back (held_ms), not the time for which the slot was held
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

// ErrLeaseToken is the error of a request to end a held lease without its token.
var ErrLeaseToken = errors.New("token: required, because the lease is held")

// ErrUnconfirmed is the error of a request that does not wait, if its pool cannot confirm a slot
// now.
var ErrUnconfirmed = errors.New("no slot can be confirmed now")

const (
	// noWaitStay is the time after which the ledger expires the waiting lease of a request that does not wait. It is
	// needed if the request breaks off. Otherwise dropNoWaitLease deletes the lease.
	noWaitStay = 10 * time.Second
	// boundedRetryInterval is the interval at which a waiting caller tries again in a pool whose callers have a bound. While
	// the callers hold as many slots as they may, the caller is in no queue, and the message that a lease ended
	// may be lost.
	boundedRetryInterval = 5 * time.Second
)

// Acquire gets a slot for the holder of a caller, or returns why there is no slot. If the holder has a lease
// already, Acquire returns that lease or continues its wait. The request is handled like a report of a device
// that is not registered. Acquire returns store.ErrUnknownPool, store.ErrExists (the holder has a lease in
// another pool), *LostError or devices.ErrUnavailable.
func (d Leases) Acquire(ctx context.Context, r LeaseRequest) (Lease, error) {
	began := d.config.Now()
	if r.unnamed = r.Holder == ""; r.unnamed {
		r.Holder = newNonce()
	}
	got, again, err := d.acquire(ctx, r, began)
	if again {
		got, _, err = d.acquire(ctx, r, began)
	}
	return got, err
}

// acquire makes one attempt to get a slot for the holder. again reports whether the lease changed
// during the attempt, so that the caller must try again.
func (d Leases) acquire(ctx context.Context, r LeaseRequest, began time.Time) (got Lease, again bool, err error) {
	opened, err := d.openLease(ctx, r)
	if err != nil {
		return Lease{}, false, err
	}
	defer func() {
		if r.unnamed && (err != nil || ctx.Err() != nil) {
			d.endUnnamedLease(ctx, r, opened.Task)
		}
	}()
	opened, reply, err := d.askForLease(ctx, r, opened, began)
	d.shortenStay(ctx, r, opened, reply, began)
	if err != nil {
		d.dropNoWaitLease(ctx, r, opened)
		return Lease{}, false, err
	}
	return d.leaseAfterReply(ctx, r, opened, reply, began)
}

// leaseAfterReply returns the state of a lease after the reply to its holder. again reports whether the lease changed
// since that reply.
func (d Leases) leaseAfterReply(ctx context.Context, r LeaseRequest, opened store.LeaseTask, reply devices.Reply, began time.Time) (got Lease, again bool, err error) {
	got, err = d.readLease(ctx, opened.Task, began)
	switch {
	case err != nil:
		return Lease{}, false, err
	case got.Grant != nil && got.Usable >= d.config.LeaseMin:
		if reply.Task != nil && reply.Task.Redelivered == 0 {
			d.metrics.leases.WithLabelValues(r.Pool, "granted").Inc()
		}
		return got, false, nil
	case got.Grant == nil && got.Task.State != store.Pending:
		return Lease{}, got.Task.State == store.TimedOut, d.lostError(ctx, got.Task, 0) // timed out: the slot of the holder was just taken back
	case got.Grant == nil && r.Wait == 0 && reply.Reason == devices.ReasonUnavailable && !d.isInStandstill(ctx, opened.Task):
		d.dropNoWaitLease(ctx, r, opened)
		return Lease{}, false, fmt.Errorf("%w: %w: pool %s", devices.ErrUnavailable, ErrUnconfirmed, r.Pool)
	}
	refused, err := d.refusedLease(ctx, r, opened, got, reply)
	// If the code is CodeRunning, another request of the holder got the slot just now.
	return refused, err == nil && got.Grant == nil && refused.Cause.Code == decision.CodeRunning, err
}

// isInStandstill reports whether a lease waits because its pool grants nothing after a restore.
func (d Leases) isInStandstill(ctx context.Context, task int64) bool {
	e, err := d.Explainer.ExplainTask(ctx, task)
	return err == nil && e.Causes[0].Code == decision.CodeStandstill
}

func (d Leases) openLease(ctx context.Context, r LeaseRequest) (store.LeaseTask, error) {
	stay := noWaitStay
	if r.Wait > 0 {
		stay = r.Wait + store.PositionTTL
	}
	opened, err := d.config.Store.OpenLease(ctx, store.NewLease{
		Pool: r.Pool, Holder: store.HolderDevice(r.Name, r.Holder), Lease: r.Lease, Metadata: r.Metadata, WaitFor: stay,
	})
	if err != nil && !errors.Is(err, store.ErrUnknownPool) && !errors.Is(err, store.ErrExists) {
		err = fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	return opened, err
}

// askForLease reports as the holder until the holder is granted a slot, or until r.Wait has passed. It returns
// the lease as it was last opened.
func (d Leases) askForLease(ctx context.Context, r LeaseRequest, opened store.LeaseTask, began time.Time) (store.LeaseTask, devices.Reply, error) {
	caller, report := r.asSender(store.HolderDevice(r.Name, r.Holder)), devices.Report{ID: newNonce(), Accept: true}
	if r.Wait == 0 {
		reply, err := d.HandleReport(ctx, caller, report)
		return opened, reply, err
	}
	for wait, hasYielded := r.Wait, false; ; {
		if opened.HasCallerBound {
			wait = min(wait, boundedRetryInterval)
		}
		h, couldWait, err := d.handleWithWait(ctx, caller, report, wait, r.OnPark)
		if err != nil {
			return opened, devices.Reply{}, err
		}
		wait = r.Wait - d.config.Now().Sub(began)
		if !couldWait || ctx.Err() != nil || wait <= 0 || !mayStillGetSlot(h.reply) {
			return opened, h.reply, err
		}
		if hasYielded = hasYielded || h.reporter.hasYielded; hasYielded && !h.reporter.blockedAlone { // the caller counts again as ahead of the callers behind it
			rest := r
			rest.Wait = wait
			again, err := d.openLease(ctx, rest)
			if err != nil {
				return opened, h.reply, err
			}
			opened, hasYielded = again, false
		}
	}
}

// mayStillGetSlot reports whether the caller has no slot yet, and may get one if it waits longer. If the holder has
// no open task (ReasonNone), it may not: the lease was ended, or another request of the holder waits for it.
func mayStillGetSlot(reply devices.Reply) bool {
	return reply.Task == nil && reply.Reason != devices.ReasonNone && decision.WaitRuleFor(reply.Reason).MayPark
}

// shortenStay lets a waiting lease expire earlier in the ledger if its caller disconnected, or was answered before
// its wait was over. Until the time at which it should ask again, the caller keeps its position ahead of other
// callers. Its position lasts for store.PositionTTL after that time. SetLeaseWait sets the time of expiry, also to an
// earlier time.
func (d Leases) shortenStay(ctx context.Context, r LeaseRequest, opened store.LeaseTask, reply devices.Reply, began time.Time) {
	rest := r.Wait - d.config.Now().Sub(began)
	switch {
	case reply.Task != nil:
		return
	case r.Wait > 0 && rest <= 0: // the lease was opened for this time
		return
	case r.Wait == 0 && opened.Created: // dropNoWaitLease deletes the lease
		return
	}
	after := min(max(rest, 0), time.Duration(reply.ReportAfterMS)*time.Millisecond)
	if ctx.Err() != nil {
		after = 0
	}
	if err := d.config.Store.SetLeaseWait(context.WithoutCancel(ctx), opened, store.PositionTTL+after); err != nil {
		d.log.WarnContext(ctx, "wait of a caller that left not shortened; it stays in the queue for longer", "err", err)
	}
}

// endUnnamedLease ends the lease of an unnamed holder whose caller got no answer and so cannot ask for the lease
// again. It gives back the slot, or the position among the waiting callers.
func (d Leases) endUnnamedLease(ctx context.Context, r LeaseRequest, task int64) {
	ctx = context.WithoutCancel(ctx)
	err := ErrLeaseToken
	for tries := 0; tries < 2 && errors.Is(err, ErrLeaseToken); tries++ { // it may be granted between the two calls
		var grant *store.Grant
		_, grant, _, err = d.config.Store.Task(ctx, task)
		switch {
		case err != nil:
		case grant != nil:
			err = d.End(ctx, r.Leaser, r.Pool, task, grant.Token)
		default:
			err = d.End(ctx, r.Leaser, r.Pool, task, 0)
		}
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		d.log.WarnContext(ctx, "lease of an unnamed holder not ended; it expires by itself", "lease", task, "err", err)
	}
}

// dropNoWaitLease deletes a lease that was opened for a request without a wait.
func (d Leases) dropNoWaitLease(ctx context.Context, r LeaseRequest, opened store.LeaseTask) {
	if r.Wait > 0 || !opened.Created {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := d.config.Store.DropLease(ctx, opened); err != nil {
		d.log.WarnContext(ctx, "lease of a request without a wait not deleted; it expires by itself", "err", err)
	}
	d.Waiters.Offers.Update(store.HolderDevice(r.Name, r.Holder), slots.WaiterLeft, []string{r.Pool})
}

// readLease reads a lease for a request that was received at began.
func (d Leases) readLease(ctx context.Context, task int64, began time.Time) (Lease, error) {
	waited := d.config.Now().Sub(began)
	found, grant, _, err := d.config.Store.Task(ctx, task)
	if err != nil {
		return Lease{}, fmt.Errorf("%w: reading lease %d: %w", devices.ErrUnavailable, task, err)
	}
	got := Lease{Task: found, Grant: grant, Waited: waited}
	if grant != nil {
		got.Usable = d.usableTime(*grant)
	}
	return got, nil
}

// refusedLease returns the lease with the reason why it has no slot. If the request does not wait, it deletes the lease.
func (d Leases) refusedLease(ctx context.Context, r LeaseRequest, opened store.LeaseTask, got Lease, reply devices.Reply) (Lease, error) {
	defer d.dropNoWaitLease(ctx, r, opened)
	e, err := d.Explainer.ExplainTask(ctx, opened.Task)
	if err != nil {
		return Lease{}, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	got.Grant, got.Cause = nil, e.Causes[0]
	got.RetryAfter = max(time.Duration(reply.ReportAfterMS)*time.Millisecond, maxDelayAfterPark)
	if r.Wait == 0 {
		d.metrics.leases.WithLabelValues(r.Pool, "refused").Inc()
	}
	return got, nil
}

// Renew extends a lease. If length is 0, the ledger extends the lease only after a third of it was used; an earlier call
// succeeds and changes nothing. If length is not 0, it becomes the length of the lease, except if the lease would then end
// sooner than without the call. Renew returns store.ErrNotFound, *LostError or devices.ErrUnavailable.
func (d Leases) Renew(ctx context.Context, l Leaser, pool string, task, token int64, length time.Duration) (Lease, error) {
	began := d.config.Now()
	leaseTask, _, err := d.readOwnLease(ctx, l, pool, task)
	if err != nil {
		return Lease{}, err
	}
	reply, err := d.HandleReport(ctx, l.asSender(leaseTask.Device), devices.Report{
		ID: newNonce(), Running: []devices.Running{{Task: task, Token: token, Lease: length}},
	})
	if err != nil {
		return Lease{}, err
	}
	got, err := d.readLease(ctx, task, began)
	if err != nil {
		return Lease{}, err
	}
	if len(reply.Renewed) == 0 || got.Grant == nil || got.Grant.Token != token {
		lost := d.lostError(ctx, got.Task, token)
		d.metrics.leases.WithLabelValues(pool, "lost").Inc()
		return Lease{}, lost
	}
	d.metrics.leases.WithLabelValues(pool, "renewed").Inc()
	return got, nil
}

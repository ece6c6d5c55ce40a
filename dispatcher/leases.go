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

// Leases gives slots to callers: to holders that are no devices, and report like them.
type Leases struct{ *Dispatcher }

// Leaser asks for a lease, or has one: a program that is no device.
type Leaser struct {
	Name  string            // of its token
	Token [sha256.Size]byte // its hash; zero: it is inside of this process
}

// reports as its holder.
func (l Leaser) as(device string) devices.Caller {
	return devices.Caller{Device: devices.ID(device), Via: devices.ViaLease, Token: l.Token}
}

// owns says whether a device is a holder of it.
func (l Leaser) owns(device string) bool { return strings.HasPrefix(device, store.Holder(l.Name, "")) }

// LeaseRequest asks for a slot of a pool.
type LeaseRequest struct {
	Leaser

	Pool     string
	Holder   string          // empty: one is made
	Lease    time.Duration   // 0: the pool's
	Metadata json.RawMessage // nil: none
	Wait     time.Duration   // for a slot, in line; 0: it is not waited for, and nothing is left behind
	OnPark   func()          // is called when the waiting begins

	unnamed bool // the holder's name was made for this request: its caller learns it only from the answer
}

// Lease is one that is open or was.
type Lease struct {
	Task   store.Task
	Grant  *store.Grant   // nil: it waits, or has ended
	Usable time.Duration  // for which the slot may be used, from the sending of the request and Held on
	Held   time.Duration  // how long the answer waited
	Why    decision.Cause // of one that is not held
	After  time.Duration  // when to ask again for one that waits
}

// LostError is the end of a lease, or of the right to it.
type LostError struct {
	Why    string // ended, reaped, released, stale; or why its holder is to stop: cancelled, max_run
	Detail string // for people
	Cancel bool   // it is held still, and its holder is to stop
}

// Error says it.
func (e *LostError) Error() string { return "the lease is lost: " + e.Detail }

// ErrLeaseToken says that a lease which is held ends by its token.
var ErrLeaseToken = errors.New("a lease that is held is given back with its token")

// ErrUnconfirmed is the error of a lease that does not wait while its pool can confirm no slot.
var ErrUnconfirmed = errors.New("no slot can be confirmed now")

const (
	// tryStay is for how long a lease is there that is tried once, if its request breaks off.
	tryStay = 10 * time.Second
	// leaseLook is how often a caller of a pool looks whose callers have a bound: it stands in no
	// queue while they hold as many as they may, and the message that one ended may be lost.
	leaseLook = 5 * time.Second
)

// Acquire gets a slot for the holder of a caller, or says why there is none. A holder that asks
// again gets the lease that it has, or goes on waiting. It is a report like any other, of a device
// that is not registered. store.ErrUnknownPool, store.ErrExists, *LostError, devices.ErrUnavailable.
func (d Leases) Acquire(ctx context.Context, r LeaseRequest) (Lease, error) {
	began := d.config.Now()
	if r.unnamed = r.Holder == ""; r.unnamed {
		r.Holder = nonce()
	}
	got, again, err := d.acquire(ctx, r, began)
	if again {
		got, _, err = d.acquire(ctx, r, began)
	}
	return got, err
}

// acquire asks once, and reports whether the lease changed meanwhile.
func (d Leases) acquire(ctx context.Context, r LeaseRequest, began time.Time) (got Lease, again bool, err error) {
	opened, err := d.openLease(ctx, r)
	if err != nil {
		return Lease{}, false, err
	}
	defer func() {
		if r.unnamed && (err != nil || ctx.Err() != nil) {
			d.letGo(ctx, r, opened.Task)
		}
	}()
	opened, reply, err := d.askForLease(ctx, r, opened, began)
	d.leaveLine(ctx, r, opened, reply, began)
	if err != nil {
		d.takeBack(ctx, r, opened)
		return Lease{}, false, err
	}
	return d.answered(ctx, r, opened, reply, began)
}

// answered returns what became of a lease after the reply to its holder, and reports whether it
// changed since that reply.
func (d Leases) answered(ctx context.Context, r LeaseRequest, opened store.LeaseTask, reply devices.Reply, began time.Time) (got Lease, again bool, err error) {
	got, err = d.leaseOf(ctx, opened.Task, began)
	switch {
	case err != nil:
		return Lease{}, false, err
	case got.Grant != nil && got.Usable >= d.config.LeaseMin:
		if reply.Task != nil && reply.Task.Redelivered == 0 {
			d.metrics.leases.WithLabelValues(r.Pool, "granted").Inc()
		}
		return got, false, nil
	case got.Grant == nil && got.Task.State != store.Pending:
		return Lease{}, got.Task.State == store.TimedOut, d.lost(ctx, got.Task, 0) // timed out: what the holder had was just taken back
	case got.Grant == nil && r.Wait == 0 && reply.Reason == devices.ReasonUnavailable && !d.standsStill(ctx, opened.Task):
		d.takeBack(ctx, r, opened)
		return Lease{}, false, fmt.Errorf("%w: %w: pool %s", devices.ErrUnavailable, ErrUnconfirmed, r.Pool)
	}
	refused, err := d.refusedLease(ctx, r, opened, got, reply)
	// Running: another request of the holder got it just now.
	return refused, err == nil && got.Grant == nil && refused.Why.Code == decision.CodeRunning, err
}

// standsStill reports whether a lease waits because its pool grants nothing after a restore.
func (d Leases) standsStill(ctx context.Context, task int64) bool {
	e, err := d.Explainer.Why(ctx, task)
	return err == nil && e.Causes[0].Code == decision.CodeStandstill
}

func (d Leases) openLease(ctx context.Context, r LeaseRequest) (store.LeaseTask, error) {
	stay := tryStay
	if r.Wait > 0 {
		stay = r.Wait + store.Stay
	}
	opened, err := d.config.Store.OpenLease(ctx, store.NewLease{
		Pool: r.Pool, Holder: store.Holder(r.Name, r.Holder), Lease: r.Lease, Metadata: r.Metadata, Stay: stay,
	})
	if err != nil && !errors.Is(err, store.ErrUnknownPool) && !errors.Is(err, store.ErrExists) {
		err = fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	return opened, err
}

// askForLease reports as the holder, until it is granted the slot, or waited as long as it would. It
// returns the lease as it was opened last.
func (d Leases) askForLease(ctx context.Context, r LeaseRequest, opened store.LeaseTask, began time.Time) (store.LeaseTask, devices.Reply, error) {
	caller, report := r.as(store.Holder(r.Name, r.Holder)), devices.Report{ID: nonce(), Accept: true}
	if r.Wait == 0 {
		reply, err := d.HandleReport(ctx, caller, report)
		return opened, reply, err
	}
	for wait, aside := r.Wait, false; ; {
		if opened.Bounded {
			wait = min(wait, leaseLook)
		}
		h, held, err := d.wait(ctx, caller, report, wait, r.OnPark)
		if err != nil {
			return opened, devices.Reply{}, err
		}
		wait = r.Wait - d.config.Now().Sub(began)
		if !held || ctx.Err() != nil || wait <= 0 || !waitsOn(h.reply) {
			return opened, h.reply, err
		}
		if aside = aside || h.from.aside; aside && !h.from.own { // from now on it counts again as ahead of the callers behind it
			rest := r
			rest.Wait = wait
			again, err := d.openLease(ctx, rest)
			if err != nil {
				return opened, h.reply, err
			}
			opened, aside = again, false
		}
	}
}

// waitsOn says that a caller has nothing yet, and still may. Without an open task somebody
// else ended the lease, or its holder asks in another request.
func waitsOn(reply devices.Reply) bool {
	return reply.Task == nil && reply.Reason != devices.ReasonNone && decision.WaitingOf(reply.Reason).Parks
}

// leaveLine shortens the wait of a caller that went away, or that was answered before its wait was
// over: until it is to ask again it counts as ahead of others. Its position lasts for Stay after that.
func (d Leases) leaveLine(ctx context.Context, r LeaseRequest, opened store.LeaseTask, reply devices.Reply, began time.Time) {
	rest := r.Wait - d.config.Now().Sub(began)
	switch {
	case reply.Task != nil:
		return
	case r.Wait > 0 && rest <= 0: // it was opened for this long
		return
	case r.Wait == 0 && opened.New: // nothing of it is left
		return
	}
	after := min(max(rest, 0), time.Duration(reply.ReportAfterMS)*time.Millisecond)
	if ctx.Err() != nil {
		after = 0
	}
	if err := d.config.Store.StayLease(context.WithoutCancel(ctx), opened, store.Stay+after); err != nil {
		d.log.WarnContext(ctx, "a caller that left stays in line for longer", "err", err)
	}
}

// letGo ends the lease of an unnamed holder whose caller got no answer and so cannot ask for the lease
// again. It gives back the slot, or the position in line.
func (d Leases) letGo(ctx context.Context, r LeaseRequest, task int64) {
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
		d.log.WarnContext(ctx, "a lease that nobody can ask for ends by itself", "lease", task, "err", err)
	}
}

// takeBack leaves nothing behind of a lease that was only tried.
func (d Leases) takeBack(ctx context.Context, r LeaseRequest, opened store.LeaseTask) {
	if r.Wait > 0 || !opened.New {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := d.config.Store.DropLease(ctx, opened); err != nil {
		d.log.WarnContext(ctx, "a lease that was tried expires by itself", "err", err)
	}
	d.Waiters.Offers.Update(store.Holder(r.Name, r.Holder), slots.WaiterLeft, []string{r.Pool})
}

// leaseOf reads a lease.
func (d Leases) leaseOf(ctx context.Context, task int64, began time.Time) (Lease, error) {
	held := d.config.Now().Sub(began)
	found, grant, _, err := d.config.Store.Task(ctx, task)
	if err != nil {
		return Lease{}, fmt.Errorf("%w: reading lease %d: %w", devices.ErrUnavailable, task, err)
	}
	got := Lease{Task: found, Grant: grant, Held: held}
	if grant != nil {
		got.Usable = d.usable(*grant)
	}
	return got, nil
}

// refusedLease says why there is no slot for one that waits, or that would.
func (d Leases) refusedLease(ctx context.Context, r LeaseRequest, opened store.LeaseTask, got Lease, reply devices.Reply) (Lease, error) {
	defer d.takeBack(ctx, r, opened)
	e, err := d.Explainer.Why(ctx, opened.Task)
	if err != nil {
		return Lease{}, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	got.Grant, got.Why = nil, e.Causes[0]
	got.After = max(time.Duration(reply.ReportAfterMS)*time.Millisecond, parkAgain)
	if r.Wait == 0 {
		d.metrics.leases.WithLabelValues(r.Pool, "refused").Inc()
	}
	return got, nil
}

// Renew extends a lease, with a new length unless length is 0. A length with which the lease would end
// sooner changes nothing. store.ErrNotFound, *LostError, devices.ErrUnavailable.
func (d Leases) Renew(ctx context.Context, l Leaser, pool string, task, token int64, length time.Duration) (Lease, error) {
	began := d.config.Now()
	of, _, err := d.ownLease(ctx, l, pool, task)
	if err != nil {
		return Lease{}, err
	}
	reply, err := d.HandleReport(ctx, l.as(of.Device), devices.Report{
		ID: nonce(), Running: []devices.Running{{Task: task, Token: token, Lease: length}},
	})
	if err != nil {
		return Lease{}, err
	}
	got, err := d.leaseOf(ctx, task, began)
	if err != nil {
		return Lease{}, err
	}
	if len(reply.Renewed) == 0 || got.Grant == nil || got.Grant.Token != token {
		lost := d.lost(ctx, got.Task, token)
		d.metrics.leases.WithLabelValues(pool, "lost").Inc()
		return Lease{}, lost
	}
	d.metrics.leases.WithLabelValues(pool, "renewed").Inc()
	return got, nil
}

// End gives a slot back, or ends the waiting for one. It may be said again. A token that
// is not that of the lease ends nothing. store.ErrNotFound, ErrLeaseToken, *LostError,
// devices.ErrUnavailable.
func (d Leases) End(ctx context.Context, l Leaser, pool string, task, token int64) error {
	of, grant, err := d.ownLease(ctx, l, pool, task)
	switch {
	case err != nil:
		return err
	case grant != nil && token == 0:
		return ErrLeaseToken
	case grant != nil && grant.Token == token:
		return d.giveBack(ctx, l, of, token)
	case of.State == store.Pending && token == 0:
		return d.giveUp(ctx, l, of)
	case token != 0 && d.endedByHolder(ctx, task, token), grant == nil && token == 0:
		return nil
	}
	return d.lost(ctx, of, token)
}

// ownLease is a lease of the caller; store.ErrNotFound.
func (d Leases) ownLease(ctx context.Context, l Leaser, pool string, task int64) (store.Task, *store.Grant, error) {
	of, grant, _, err := d.config.Store.Task(ctx, task)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return of, nil, err //nolint:wrapcheck // the store's own
	case err != nil:
		return of, nil, fmt.Errorf("%w: reading lease %d: %w", devices.ErrUnavailable, task, err)
	case of.Pool != pool || !l.owns(of.Device):
		return of, nil, store.ErrNotFound
	}
	return of, grant, nil
}

// giveBack is the result of a task that nobody queued.
func (d Leases) giveBack(ctx context.Context, l Leaser, of store.Task, token int64) error {
	reply, err := d.HandleReport(ctx, l.as(of.Device), devices.Report{
		ID: nonce(), Results: []devices.Result{{Task: of.ID, Token: token, Status: devices.StatusSucceeded}},
	})
	if err != nil {
		return err
	}
	if len(reply.Acks) == 0 {
		return fmt.Errorf("%w: lease %d", devices.ErrUnavailable, of.ID)
	}
	if got := reply.Acks[0].Outcome; got != devices.OutcomeRecorded && got != devices.OutcomeDuplicate {
		return d.lost(ctx, of, token)
	}
	d.metrics.leases.WithLabelValues(of.Pool, "ended").Inc()
	return nil
}

// giveUp ends the waiting of a lease, unless it was granted just now. An answer of its holder that
// waits comes now.
func (d Leases) giveUp(ctx context.Context, l Leaser, of store.Task) error {
	held, err := d.config.Store.GiveUpLease(ctx, l.Name, of.ID)
	switch {
	case err != nil:
		return fmt.Errorf("%w: ending the waiting of lease %d: %w", devices.ErrUnavailable, of.ID, err)
	case held:
		return ErrLeaseToken
	}
	d.Waiters.Offers.Update(of.Device, slots.WaiterLeft, []string{of.Pool})
	d.Waiters.Relay.WakeCallers(of.Pool)
	_, err = d.HandleReport(ctx, l.as(of.Device), devices.Report{ID: nonce()})
	return err
}

// endedByHolder says whether the holder itself gave the slot back.
func (d Leases) endedByHolder(ctx context.Context, task, token int64) bool {
	_, _, attempts, err := d.config.Store.Task(ctx, task)
	for _, a := range attempts {
		if a.Token == token {
			return err == nil && a.EndedBy == store.BySuccess
		}
	}
	return false
}

// lost says what became of a lease.
func (d Leases) lost(ctx context.Context, of store.Task, token int64) error {
	e, err := d.Explainer.Why(ctx, of.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	lost := &LostError{Why: "ended", Detail: e.Causes[0].Detail}
	_, grant, attempts, err := d.config.Store.Task(ctx, of.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	if grant != nil && grant.Token == token && grant.CancelWhy != "" {
		return &LostError{Why: grant.CancelWhy, Detail: "its holder was asked to stop: " + lost.Detail, Cancel: true}
	}
	for _, a := range attempts {
		switch {
		case token != 0 && a.Token != token:
		case a.EndedBy == store.ByLapse:
			lost.Why = "reaped"
		case a.EndedBy == store.ByOperator:
			lost.Why = "released"
		}
	}
	if grant != nil && grant.Token != token {
		lost.Why, lost.Detail = "stale", "it is held under another token"
	}
	return lost
}

package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/internal/child"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	firstPoll   = time.Second      // of the first request: then its position is known
	longestPoll = 25 * time.Second // of one request that waits
	goodbye     = 10 * time.Second // for giving a slot back
	retryPause  = time.Second
)

// keeper gets a lease, and keeps it while a command runs.
type keeper struct {
	*runner
	*session

	held  operators.Lease
	doubt bool      // the answer to a request did not arrive: it may hold or wait
	end   time.Time // of the lease, counted from before it was asked for
	lost  error     // why the command is ended before its time
}

// rest is how much is left of the lease.
func (k *keeper) rest() time.Duration { return time.Until(k.end) }

// noted takes over what was answered to a request that was sent at a time.
func (k *keeper) noted(l operators.Lease, asked time.Time) {
	k.held, k.end = l, asked.Add(time.Duration(l.HeldMS+l.LeaseMS)*time.Millisecond)
}

// waitInLine returns when the lease is held. Without it the line is left.
func (k *keeper) waitInLine(ctx context.Context) (err error) {
	view := newLineView(k.session)
	defer func() {
		view.clear()
		if err != nil {
			k.release(ctx)
		}
	}()
	over := time.Now().Add(k.wait)
	for poll := firstPoll; ; poll = longestPoll {
		asked := time.Now()
		l, err := k.acquire(ctx, min(poll, max(over.Sub(asked), 0)))
		switch {
		case err == nil && l.State == operators.LeaseHeld:
			k.noted(l, asked)
			return nil
		case err == nil:
			k.held = l
			view.show(l)
		case ctx.Err() != nil || !k.doubt && !noSlot(err):
			return err
		default:
			view.trouble(err)
		}
		if !time.Now().Before(over) {
			k.note("No slot of pool %s was granted within %s%s", k.pool, k.wait, view.last())
			return statusError(exitNotGranted)
		}
		if err := operators.Pause(ctx, max(min(time.Until(over), time.Duration(l.RetryAfterMS)*time.Millisecond, retryPause), 0)); err != nil {
			return err
		}
	}
}

// acquire asks for a slot once. A server that hangs is not waited for.
func (k *keeper) acquire(ctx context.Context, wait time.Duration) (operators.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+goodbye)
	defer cancel()
	l, err := k.Leases.Acquire(ctx, k.pool, operators.NewLease{Holder: k.holder, LeaseMS: k.lease.Milliseconds()}, wait)
	k.doubt = err != nil && operators.Transient(err) || ctx.Err() != nil
	return l, err
}

func noSlot(err error) bool { return refusedAs(err, "no_slot") }

func refusedAs(err error, code string) bool {
	p, ok := errors.AsType[*operators.Problem](err)
	return ok && p.Code == code
}

// keep renews the lease and passes signals on until the command has ended.
func (k *keeper) keep(ctx context.Context, c *child.Child, signals <-chan os.Signal) {
	renew := time.NewTimer(k.untilRenewal())
	defer renew.Stop()
	for {
		select {
		case <-c.Ended():
			if k.rest() <= k.grace && k.lost == nil {
				k.lost = errors.New("its lease could not be renewed")
			}
			return
		case s := <-signals:
			if s, ok := s.(syscall.Signal); ok {
				c.Signal(s)
			}
		case <-renew.C:
			if k.renew(ctx, c) {
				renew.Reset(k.untilRenewal())
			} else if k.lost == nil {
				renew.Reset(retryPause)
			}
		}
	}
}

// untilRenewal is the time until a third of the lease has passed.
func (k *keeper) untilRenewal() time.Duration {
	return max(k.rest()-time.Duration(k.held.LeaseMS)*time.Millisecond*2/3, 0)
}

// renew extends the lease. When the slot is to be given back, the command is ended.
func (k *keeper) renew(ctx context.Context, c *child.Child) bool {
	ctx, cancel := context.WithTimeout(ctx, max(k.rest()/3, retryPause))
	defer cancel()
	asked := time.Now()
	l, err := k.Leases.Renew(ctx, k.pool, k.held.Lease, operators.LeaseRenewal{Token: k.held.Token, LeaseMS: k.lease.Milliseconds()})
	switch {
	case err == nil:
		k.noted(l, asked)
		c.Until(k.rest())
		return true
	case refusedAs(err, "lease_lost"):
		k.lost = err
	default:
		k.note("The lease of slot %d is not renewed, and ends in %s: %v", *k.held.Slot, k.rest().Round(time.Second), err)
		return false
	}
	c.Until(min(k.grace, max(k.rest(), 0)))
	return false
}

// release gives the slot back, or leaves the line. What cannot be said now ends by itself.
func (k *keeper) release(ctx context.Context) {
	if k.held.Lease == 0 && !k.doubt {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	for {
		err := k.giveBack(ctx)
		if err == nil || k.lost != nil || !operators.Transient(err) || operators.Pause(ctx, retryPause) != nil {
			if err != nil && k.lost == nil {
				k.note("Slot of pool %s not given back; it is taken back at the end of its lease: %v", k.pool, err)
			}
			return
		}
	}
}

// giveBack ends what the holder has: also what it was granted by an answer that did not arrive.
func (k *keeper) giveBack(ctx context.Context) error {
	if k.held.Lease != 0 {
		err := k.Leases.Release(ctx, k.pool, k.held.Lease, k.held.Token)
		if !operators.Refused(err, http.StatusUnprocessableEntity) { // it waited, and was granted meanwhile
			return err
		}
	}
	l, err := k.acquire(ctx, firstPoll)
	if err != nil {
		return err
	}
	return k.Leases.Release(ctx, k.pool, l.Lease, l.Token)
}

// environment is what the command learns of its slot. The token of the API is not passed on.
func (k *keeper) environment() []string {
	return []string{
		"DISPATCHER_POOL=" + k.pool, "DISPATCHER_SLOT=" + strconv.Itoa(*k.held.Slot),
		"DISPATCHER_TOKEN=" + strconv.FormatInt(k.held.Token, 10), "DISPATCHER_LEASE=" + strconv.FormatInt(k.held.Lease, 10),
	}
}

package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/internal/child"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	releaseTimeout = 10 * time.Second // maximum time to release a slot
	retryPause     = time.Second
)

// leaseKeeper acquires a lease and renews it while a command runs. To end the command
// early, it reduces the time that the command has left (child.Child.SetTimeLeft).
type leaseKeeper struct {
	*runner
	leases  operators.Leases
	console *console

	held       operators.Lease
	lossReason error // why the command was ended early; nil if it was not
}

func (k *leaseKeeper) remainingTime() time.Duration { return time.Until(k.held.UsableUntil) }

// waitForLease waits until the lease is held. If no slot is granted in time, it leaves the queue and returns an error.
func (k *leaseKeeper) waitForLease(ctx context.Context) (err error) {
	line := k.console.newStatusLine()
	defer line.Clear()
	k.held, err = k.leases.WaitForSlot(ctx, k.pool, operators.NewLease{Holder: k.holder, LeaseMS: k.lease.Milliseconds()}, k.wait, line.updateWaiting)
	switch {
	case err == nil && k.held.State == operators.LeaseHeld:
		return nil
	case err == nil:
		k.console.writeMessage("No slot of pool %s was granted within %s: %s", k.pool, k.wait, k.held.Detail)
	case hasProblemCode(err, "no_slot"):
		k.console.writeMessage("No slot of pool %s was granted within %s: %v", k.pool, k.wait, err)
	default:
		return err
	}
	return statusError(exitNotGranted)
}

// hasProblemCode reports whether err is the refusal of a request by the server with this code.
func hasProblemCode(err error, code string) bool {
	p, ok := errors.AsType[*operators.Problem](err)
	return ok && p.Code == code
}

// keepWhileRunning renews the lease, and passes the signals that this program receives to the command, until the command has ended.
func (k *leaseKeeper) keepWhileRunning(ctx context.Context, command *child.Child, signals <-chan os.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	renewed := make(chan renewalResult, 1) // renewals run in goroutines, so that a slow server delays neither signals nor the end of the command
	renew := time.NewTimer(k.timeUntilRenewal())
	defer renew.Stop()
	for {
		select {
		case <-command.Ended():
			if k.remainingTime() <= k.grace && k.lossReason == nil {
				k.lossReason = errors.New("the lease could not be renewed")
			}
			return
		case s := <-signals:
			if s, ok := s.(syscall.Signal); ok {
				command.Signal(s)
			}
		case <-renew.C:
			held := k.held
			rescue.Async(func() error {
				renewed <- k.renew(ctx, held)
				return nil
			})
		case r := <-renewed:
			if pause := k.applyRenewal(r, command); pause >= 0 {
				renew.Reset(pause)
			}
		}
	}
}

// timeUntilRenewal returns the time until a third of the lease has passed.
func (k *leaseKeeper) timeUntilRenewal() time.Duration {
	return max(k.remainingTime()-time.Duration(k.held.LeaseMS)*time.Millisecond*2/3, 0)
}

// renewalResult is the result of one attempt to renew the lease.
type renewalResult struct {
	lease operators.Lease
	err   error
}

// renew sends one request to renew the lease in held, and returns the result.
func (k *leaseKeeper) renew(ctx context.Context, held operators.Lease) renewalResult {
	ctx, cancel := context.WithTimeout(ctx, max(time.Until(held.UsableUntil)/3, retryPause))
	defer cancel()
	l, err := k.leases.Renew(ctx, k.pool, held.Lease, operators.LeaseRenewal{Token: held.Token, LeaseMS: k.lease.Milliseconds()})
	return renewalResult{l, err}
}

// applyRenewal applies the result of a renewal: it extends the time of the command, or ends the command if the slot must
// be given back. It returns the time until the next renewal. A negative time means that there is no next renewal.
func (k *leaseKeeper) applyRenewal(result renewalResult, command *child.Child) (untilNext time.Duration) {
	switch {
	case result.err == nil && k.remainingTime() <= k.grace: // the guard has begun to end the command
		k.held, k.lossReason = result.lease, errors.New("the lease was renewed too late")
		return -1
	case result.err == nil:
		k.held = result.lease
		command.SetTimeLeft(k.remainingTime())
		return k.timeUntilRenewal()
	case hasProblemCode(result.err, "lease_lost"):
		k.lossReason = result.err
		command.SetTimeLeft(min(k.grace, max(k.remainingTime(), 0)))
		return -1
	}
	k.console.writeMessage("The lease of slot %d was not renewed, and ends in %s: %v", *k.held.Slot, k.remainingTime().Round(time.Second), result.err)
	return retryPause
}

// release gives the slot back. If the server cannot be reached, the slot becomes free at the end of the lease.
func (k *leaseKeeper) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for {
		err := k.leases.Release(ctx, k.pool, k.held.Lease, k.held.Token)
		if err == nil || k.lossReason != nil {
			return
		}
		if !operators.IsTransient(err) || operators.Sleep(ctx, retryPause) != nil {
			k.console.writeMessage("The slot of pool %s was not given back; it is free at the end of its lease: %v", k.pool, err)
			return
		}
	}
}

// commandEnvironment returns the environment of the command: ownVariables, which is the environment of this program, and the variables of the
// slot. It omits the address and the token of the API. The command's DISPATCHER_TOKEN is the fencing token, not the API token.
func (k *leaseKeeper) commandEnvironment(ownVariables []string) (variables []string) {
	env := slices.DeleteFunc(slices.Clone(ownVariables), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains([]string{"DISPATCHER_URL", "DISPATCHER_TOKEN", "DISPATCHER_TOKEN_FILE"}, name)
	})
	return append(env,
		"DISPATCHER_POOL="+k.pool, "DISPATCHER_SLOT="+strconv.Itoa(*k.held.Slot),
		"DISPATCHER_TOKEN="+strconv.FormatInt(k.held.Token, 10), "DISPATCHER_LEASE="+strconv.FormatInt(k.held.Lease, 10),
	)
}

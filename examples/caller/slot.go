package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	queueWait      = 10 * time.Second // how long one request waits in the queue
	requestTimeout = 5 * time.Second  // timeout of a renewal and of the release
)

// slot is a slot of a pool, with its lease. The holder waits for the slot, holds it, or has lost it.
type slot struct {
	leases       operators.Leases
	pool, holder string
	length       time.Duration // length of the lease

	operators.Lease
	ends time.Time // end of the lease by the clock of this process
}

var errLost = errors.New("the lease is lost")

// acquire waits in the queue until the slot is granted. It sends the request again after each response
// without a slot, and after a lost response: the holder keeps its position, and never has two leases.
func (s *slot) acquire(ctx context.Context, out io.Writer) error {
	for {
		asked := time.Now()
		l, err := s.leases.Acquire(ctx, s.pool, operators.NewLease{Holder: s.holder, LeaseMS: s.length.Milliseconds()}, queueWait)
		switch {
		case err == nil && l.State == operators.LeaseHeld:
			s.Lease = l
			s.extend(l, asked)
			return nil
		case err == nil:
			s.Lease = l
			_, _ = fmt.Fprintln(out, "waiting:", l.Detail)
		case !operators.IsTransient(err):
			return err
		}
		if err := operators.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// extend sets s.ends after a response. requestedAt is the time at which the request was sent. The server began
// the lease at least renewed.HeldMS after this time, so the lease does not end before s.ends.
func (s *slot) extend(renewed operators.Lease, requestedAt time.Time) {
	s.ends = requestedAt.Add(time.Duration(renewed.HeldMS+renewed.LeaseMS) * time.Millisecond)
}

// hold runs work, and renews the lease until work returns. It cancels the context of work when the lease is lost, or
// when the lease could not be renewed and ends within a sixth of its length.
func (s *slot) hold(ctx context.Context, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	third := time.Duration(s.LeaseMS) * time.Millisecond / 3
	pause := third
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(pause):
		}
		latest := s.ends.Add(-third / 2) // the work needs some time to stop before the lease ends
		err := s.renew(ctx, latest)
		_, refused := errors.AsType[*operators.Problem](err)
		switch {
		case err == nil:
			pause = third
		case (!refused || operators.IsTransient(err)) && time.Now().Before(latest):
			pause = time.Second
		default:
			cancel(fmt.Errorf("%w: %w", errLost, err))
			return <-done
		}
	}
}

// renew extends the lease. It fails if there is no response until deadline.
func (s *slot) renew(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, min(requestTimeout, time.Until(deadline)))
	defer cancel()
	asked := time.Now()
	l, err := s.leases.Renew(ctx, s.pool, s.Lease.Lease, operators.LeaseRenewal{Token: s.Token})
	if err == nil {
		s.extend(l, asked)
	}
	return err
}

// giveBack gives back the slot, or the position in the queue. If the server does not answer, the slot
// becomes free at the end of its lease, and the position is lost a minute after the latest response.
func (s *slot) giveBack(ctx context.Context) {
	if s.Lease.Lease == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for operators.IsTransient(s.leases.Release(ctx, s.pool, s.Lease.Lease, s.Token)) && operators.Sleep(ctx, time.Second) == nil {
	}
}

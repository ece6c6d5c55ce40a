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
	poll    = 10 * time.Second // of one request that waits in line
	answers = 5 * time.Second  // for one to any other
)

// slot is one that a holder wants, has or had.
type slot struct {
	leases       operators.Leases
	pool, holder string
	length       time.Duration // of the lease

	operators.Lease
	ends time.Time // by the clock of this process
}

var errLost = errors.New("the lease is lost")

// acquire waits in line. A holder that asks again keeps its position, and has one lease at most: so
// it asks again whenever an answer is lost.
func (s *slot) acquire(ctx context.Context, out io.Writer) error {
	for {
		asked := time.Now()
		l, err := s.leases.Acquire(ctx, s.pool, operators.NewLease{Holder: s.holder, LeaseMS: s.length.Milliseconds()}, poll)
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

// extend counts from before the request was sent: the server's clock began later.
func (s *slot) extend(l operators.Lease, asked time.Time) {
	s.ends = asked.Add(time.Duration(l.HeldMS+l.LeaseMS) * time.Millisecond)
}

// hold works while the lease is renewed. The context of the work ends when the lease is lost, and before
// it is over.
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
		latest := s.ends.Add(-third / 2) // the work needs time to end, too
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

// renew extends the lease. It gives up in time.
func (s *slot) renew(ctx context.Context, latest time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, min(answers, time.Until(latest)))
	defer cancel()
	asked := time.Now()
	l, err := s.leases.Renew(ctx, s.pool, s.Lease.Lease, operators.LeaseRenewal{Token: s.Token})
	if err == nil {
		s.extend(l, asked)
	}
	return err
}

// giveBack frees the slot, or the position in line. If it cannot be said, it ends by itself.
func (s *slot) giveBack(ctx context.Context) {
	if s.Lease.Lease == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	for operators.IsTransient(s.leases.Release(ctx, s.pool, s.Lease.Lease, s.Token)) && operators.Sleep(ctx, time.Second) == nil {
	}
}

package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// convoys makes one call of what comes up for the same key while calls for it
// are under way, so that under load one statement serves many reports. Nobody
// waits for company: what comes up while nothing is under way leaves at once.
//
// A call that fails is made again for each alone, so that a bad one does not fail
// those beside it; unless it may have taken effect. A call has a limit of its own.
// A caller with less time than that is not taken along: it would end the call for all.
type convoys[In, Out any] struct {
	call  func(ctx context.Context, all []In) ([]Out, error) // one outcome for each, in their order
	lanes int                                                // calls under way at once, for one key
	most  int                                                // that go in one call
	limit time.Duration                                      // of a call, those for each alone included

	panicked rescue.Told

	mu  sync.Mutex
	all map[string]*convoy[In, Out] // those of which something is under way
}

// convoy is that of one key. Its convoys' lock guards it.
type convoy[In, Out any] struct {
	underway int
	waiting  []*rider[In, Out]
}

// rider is what one caller wants. Its outcome is set before done is closed.
type rider[In, Out any] struct {
	in   In
	by   time.Time // when its caller's time is up; zero: never
	out  Out
	err  error
	done chan struct{}
}

func newConvoys[In, Out any](call func(context.Context, []In) ([]Out, error), lanes, most int, limit time.Duration) *convoys[In, Out] {
	return &convoys[In, Out]{call: call, lanes: lanes, most: most, limit: limit, all: make(map[string]*convoy[In, Out])}
}

// ride returns what became of in. When ctx ends before it has left, or has less left
// than a call may take, it does not leave any more; what has left is waited for.
func (c *convoys[In, Out]) ride(ctx context.Context, key string, in In) (Out, error) {
	by, _ := ctx.Deadline()
	r := &rider[In, Out]{in: in, by: by, done: make(chan struct{})}
	c.join(key, r)
	select {
	case <-r.done:
	case <-ctx.Done():
		if c.stay(key, r) {
			return r.out, fmt.Errorf("waiting for its turn: %w", ctx.Err())
		}
		<-r.done
	}
	return r.out, r.err
}

func (c *convoys[In, Out]) join(key string, r *rider[In, Out]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[key]
	if of == nil {
		of = &convoy[In, Out]{}
		c.all[key] = of
	}
	of.waiting = append(of.waiting, r)
	if of.underway < c.lanes {
		of.underway++
		c.panicked.Go("driving a convoy", func() { c.drive(key) })
	}
}

// stay takes back a rider, unless it has left.
func (c *convoys[In, Out]) stay(key string, r *rider[In, Out]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.all[key]; of != nil {
		for i, w := range of.waiting {
			if w == r {
				of.waiting = append(of.waiting[:i:i], of.waiting[i+1:]...)
				return true
			}
		}
	}
	return false
}

func (c *convoys[In, Out]) drive(key string) {
	for riders := c.next(key); len(riders) > 0; riders = c.next(key) {
		c.carry(riders)
	}
}

// next are those that leave now; without any the lane is empty.
func (c *convoys[In, Out]) next(key string) []*rider[In, Out] {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[key]
	n := min(len(of.waiting), c.most)
	riders := of.waiting[:n:n]
	of.waiting = of.waiting[n:]
	if n == 0 {
		if of.underway--; of.underway == 0 {
			delete(c.all, key)
		}
	}
	return riders
}

// carry makes the call, and the calls for each alone if need be.
func (c *convoys[In, Out]) carry(riders []*rider[In, Out]) {
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	if riders = c.inTime(ctx, riders); len(riders) == 0 {
		return
	}
	err := c.attempt(ctx, riders)
	again := err != nil && len(riders) > 1 && !errors.Is(err, store.ErrOutcomeUnknown)
	for i, r := range riders {
		r.err = err
		if again {
			r.err = c.attempt(ctx, riders[i:i+1])
		}
		close(r.done)
	}
}

// inTime sends away the callers who have less time than the call may take.
func (c *convoys[In, Out]) inTime(call context.Context, riders []*rider[In, Out]) []*rider[In, Out] {
	end, _ := call.Deadline()
	return slices.DeleteFunc(riders, func(r *rider[In, Out]) bool {
		late := !r.by.IsZero() && r.by.Before(end)
		if late {
			r.err = fmt.Errorf("less than %s left: %w", c.limit, context.DeadlineExceeded)
			close(r.done)
		}
		return late
	})
}

// attempt makes one call. A panic in it must not leave riders behind; whether it
// took effect is not known.
func (c *convoys[In, Out]) attempt(ctx context.Context, riders []*rider[In, Out]) error {
	all := make([]In, len(riders))
	for i, r := range riders {
		all[i] = r.in
	}
	var outcomes []Out
	err := c.panicked.Tell("asking for many at once", rescue.Call(func() (err error) {
		outcomes, err = c.call(ctx, all)
		return err
	}))
	if _, ok := errors.AsType[*rescue.Panic](err); ok {
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
	}
	if err != nil {
		return err
	}
	for i, r := range riders {
		r.out = outcomes[i]
	}
	return nil
}

// Package coalesce makes one call of what is asked for while calls are under way, so
// that under load one statement or script serves many.
package coalesce

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Calls are coalesced for each key by itself. There is no timer: what is asked for while
// nothing is under way is called for at once. Set the exported fields before the first Do.
//
// A call that fails is made again for each caller alone, so that a bad one does not fail
// those beside it; unless Alone says that it must not be.
type Calls[Key comparable, In, Out any] struct {
	Call  func(ctx context.Context, key Key, all []In) ([]Out, error) // one outcome for each, in their order
	Alone func(err error) bool
	Lanes int          // calls under way at once, for one key
	Fill  int          // a call begins beside others only when so many wait: fewer, larger calls cost less; 0: at once
	Most  int          // what goes in one call, by Size; a larger one goes alone
	Size  func(In) int // nil: 1

	// Limit of a call, those for each alone included; 0: the call has limits of its own.
	// A caller with less time than that is not taken along: it would end the call for all.
	Limit    time.Duration
	Panicked rescue.Told

	mu  sync.Mutex
	all map[Key]*queue[In, Out] // those of which something is under way
}

// queue is that of one key. The lock of Calls guards it.
type queue[In, Out any] struct {
	underway int
	waiting  []*caller[In, Out]
}

// caller waits until done is closed; out and err are set before.
type caller[In, Out any] struct {
	in   In
	by   time.Time // when its time is up; zero: never
	out  Out
	err  error
	done chan struct{}
}

// Do returns what became of in. When ctx ends before a call has taken it along, or has
// less left than a call may take, it is not called for; the outcome of a call is awaited.
//
// A caller that finds nothing under way makes the call itself: of one that comes alone no
// other goroutine is woken.
func (c *Calls[Key, In, Out]) Do(ctx context.Context, key Key, in In) (Out, error) {
	by, _ := ctx.Deadline()
	w := &caller[In, Out]{in: in, by: by, done: make(chan struct{})}
	if ctx.Err() != nil {
		return w.out, fmt.Errorf("waiting for its turn: %w", ctx.Err())
	}
	if c.enter(key, w) {
		c.answer(key, c.next(key)) //nolint:contextcheck // a call serves others, too: it ends with no one of them
		if c.goesOn(key) {
			c.Panicked.Go("calling for many at once", func() { c.run(key) })
		}
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if c.leave(key, w) {
			return w.out, fmt.Errorf("waiting for its turn: %w", ctx.Err())
		}
		<-w.done
	}
	return w.out, w.err
}

// enter says whether nothing was under way: then the caller is the first of the next call,
// and makes it.
func (c *Calls[Key, In, Out]) enter(key Key, w *caller[In, Out]) (leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[Key]*queue[In, Out])
	}
	q := c.all[key]
	if q == nil {
		q = &queue[In, Out]{}
		c.all[key] = q
	}
	q.waiting = append(q.waiting, w)
	leads = q.underway == 0
	if leads || q.underway < c.Lanes && len(q.waiting) >= c.Fill {
		q.underway++
		if !leads {
			c.Panicked.Go("calling for many at once", func() { c.run(key) })
		}
	}
	return leads
}

// leave is false when a call has taken the caller along.
func (c *Calls[Key, In, Out]) leave(key Key, w *caller[In, Out]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.all[key]
	if q == nil {
		return false
	}
	i := slices.Index(q.waiting, w)
	if i >= 0 {
		q.waiting = slices.Delete(slices.Clone(q.waiting), i, i+1) // those under way are in the same array
	}
	return i >= 0
}

func (c *Calls[Key, In, Out]) run(key Key) {
	for c.goesOn(key) {
		c.answer(key, c.next(key))
	}
}

// goesOn says whether somebody waits for the next call of a lane; else the lane is empty.
func (c *Calls[Key, In, Out]) goesOn(key Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.all[key]
	if len(q.waiting) > 0 {
		return true
	}
	if q.underway--; q.underway == 0 {
		delete(c.all, key)
	}
	return false
}

// next are those that go in one call: none, if another lane took them.
func (c *Calls[Key, In, Out]) next(key Key) []*caller[In, Out] {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, n := c.all[key], 0
	for size := 0; n < len(q.waiting); n++ {
		if size += c.sizeOf(q.waiting[n].in); size > c.Most && n > 0 {
			break
		}
	}
	together := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return together
}

func (c *Calls[Key, In, Out]) sizeOf(in In) int {
	if c.Size == nil {
		return 1
	}
	return c.Size(in)
}

// answer makes the call, and those for each alone if need be.
func (c *Calls[Key, In, Out]) answer(key Key, together []*caller[In, Out]) {
	ctx := context.Background()
	if c.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Limit)
		defer cancel()
	}
	if together = c.inTime(ctx, together); len(together) == 0 {
		return
	}
	err := c.attempt(ctx, key, together)
	again := err != nil && len(together) > 1 && c.Alone(err)
	for i, w := range together {
		w.err = err
		if again {
			w.err = c.attempt(ctx, key, together[i:i+1])
		}
		close(w.done)
	}
}

// inTime sends away the callers who have less time than the call may take.
func (c *Calls[Key, In, Out]) inTime(call context.Context, together []*caller[In, Out]) []*caller[In, Out] {
	end, limited := call.Deadline()
	return slices.DeleteFunc(together, func(w *caller[In, Out]) bool {
		late := limited && !w.by.IsZero() && w.by.Before(end)
		if late {
			w.err = fmt.Errorf("less than %s left: %w", c.Limit, context.DeadlineExceeded)
			close(w.done)
		}
		return late
	})
}

// attempt makes one call. A panic in it is an error: it must not leave callers behind.
func (c *Calls[Key, In, Out]) attempt(ctx context.Context, key Key, together []*caller[In, Out]) error {
	all := make([]In, len(together))
	for i, w := range together {
		all[i] = w.in
	}
	var outcomes []Out
	err := c.Panicked.Tell("calling for many at once", rescue.Call(func() (err error) {
		outcomes, err = c.Call(ctx, key, all)
		return err
	}))
	if err != nil {
		return err
	}
	for i, w := range together {
		w.out = outcomes[i]
	}
	return nil
}

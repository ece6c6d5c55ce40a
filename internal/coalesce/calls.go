// Package coalesce combines requests that arrive while a call is in progress into the next call, so that under load one statement or script
// serves many callers.
package coalesce

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Calls coalesces the requests of each key separately. There is no timer: a request that arrives while no call of its key is in progress is
// sent at once. Set the exported fields before the first Do.
//
// If a call of several requests fails and Alone returns true for the error, the call is repeated for each request alone, so that one bad
// request does not fail the requests of the same call.
type Calls[Key comparable, In, Out any] struct {
	Call  func(ctx context.Context, key Key, all []In) ([]Out, error) // returns one outcome for each request, in the order of all
	Alone func(err error) bool
	Lanes int          // maximum number of concurrent calls of one key
	Fill  int          // an additional concurrent call starts only when Fill callers wait: fewer, larger calls cost less; 0 means at once
	Most  int          // maximum total Size of the requests of one call; a request that is larger is sent alone
	Size  func(In) int // nil means that every request has the size 1

	// Limit is the time limit of a call, including its repetitions for single requests. If Limit is 0, Call must limit itself. A caller
	// with less time left than Limit is not included in a call: its deadline would end the call for all callers.
	Limit    time.Duration
	Panicked rescue.Told

	mu  sync.Mutex
	all map[Key]*queue[In, Out] // only keys with a call in progress
}

// queue holds the callers of one key. The mutex of Calls guards it.
type queue[In, Out any] struct {
	underway int
	waiting  []*caller[In, Out]
}

// caller waits until done is closed; out and err are set before that.
type caller[In, Out any] struct {
	in   In
	by   time.Time // its deadline; the zero time means none
	out  Out
	err  error
	done chan struct{}
}

// Do returns the outcome of in. If ctx ends before a call has included the caller, or has less time left than Limit when the call starts,
// no call is made for it. Once a call has included the caller, Do waits for its outcome even if ctx ends.
//
// A caller that arrives while no call is in progress makes the call itself: a single caller needs no other goroutine.
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

// enter adds w to the queue of key and reports whether no call was in progress. In that case the caller must make the next call itself.
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

// leave removes w from the queue. It returns false if a call has already included the caller.
func (c *Calls[Key, In, Out]) leave(key Key, w *caller[In, Out]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.all[key]
	if q == nil {
		return false
	}
	i := slices.Index(q.waiting, w)
	if i >= 0 {
		q.waiting = slices.Delete(slices.Clone(q.waiting), i, i+1) // a call in progress uses the same array
	}
	return i >= 0
}

func (c *Calls[Key, In, Out]) run(key Key) {
	for c.goesOn(key) {
		c.answer(key, c.next(key))
	}
}

// goesOn reports whether callers wait for the next call of this lane. If none waits, it frees the lane.
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

// next removes the callers of the next call from the queue and returns them. It returns none if another lane took them.
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

// answer makes the call, and repeats it for each caller alone if the call failed and Alone permits that.
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

// inTime returns the callers with enough time left for the call. It fails the other callers with context.DeadlineExceeded.
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

// attempt makes one call. It returns a panic as an error, so that no caller waits forever.
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

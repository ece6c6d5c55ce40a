// Package coalesce combines requests into shared calls. Requests that arrive while a call is in progress are sent together in the next call,
// so that under load one statement or script serves many callers. The package keeps no outcome after the call. Package reading is for callers
// that may share the outcome of an earlier call.
package coalesce

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Calls coalesces the requests of each key separately. A request that arrives while no call of its key is in progress is sent at once, or under
// load after Linger. Set the exported fields before the first Do.
//
// If a call of several requests fails and MayRetryAlone returns true for the error, the call is repeated for each request alone, so that one bad
// request does not fail the other requests of its call.
type Calls[Key comparable, In, Out any] struct {
	Call          func(ctx context.Context, key Key, requests []In) ([]Out, error) // returns one outcome for each request, in the order of requests
	MayRetryAlone func(err error) bool
	MaxConcurrent int          // maximum number of concurrent calls of one key
	MinWaiting    int          // an additional concurrent call starts only when MinWaiting callers wait: fewer, larger calls cost less; 0 means at once
	MaxSize       int          // maximum total Size of the requests of one call; a request that is larger is sent alone
	Size          func(In) int // nil means that every request has the size 1

	// Linger is the time for which a call waits for more callers if the latest call had several and fewer than MinWaiting wait. Under load, the
	// callers of one call soon return together. Without Linger, the first of them would get a call of its own.
	Linger time.Duration

	// Timeout is the time limit of a call and of its repetitions for single requests together. If Timeout is 0, there is no limit, so Call must
	// have a limit of its own. A caller with less time left than Timeout is not included in a call, and gets context.DeadlineExceeded.
	Timeout time.Duration
	OnPanic rescue.PanicHandler

	mu     sync.Mutex
	queues map[Key]*keyQueue[In, Out] // only keys with a call in progress
	latest int                        // number of callers of the latest call (at least 1), of any key
}

// keyQueue holds the callers that wait for a call with the same key. The mutex of Calls guards it.
type keyQueue[In, Out any] struct {
	runningCalls int
	waiting      []*caller[In, Out]
}

// caller is one caller of Do. It waits until done is closed. out and err are set before done is closed.
type caller[In, Out any] struct {
	in       In
	deadline time.Time // deadline of the caller's ctx; zero means none; only Do notices a cancelled ctx
	out      Out
	err      error
	done     chan struct{}
}

// Do returns the outcome of request, which it sends together with other requests of the same key. If ctx has less time left than Timeout when
// the call starts, request is not sent. If ctx ends while request waits for a call, Do takes request back. A call that starts at that moment may
// include request first. Once a call has included request, Do waits for the outcome, also of a repetition, even if ctx ends.
//
// If no call of key is in progress, Do makes the call in its own goroutine, unless the call waits for Linger.
func (c *Calls[Key, In, Out]) Do(ctx context.Context, key Key, request In) (Out, error) {
	deadline, _ := ctx.Deadline()
	w := &caller[In, Out]{in: request, deadline: deadline, done: make(chan struct{})}
	if ctx.Err() != nil {
		return w.out, fmt.Errorf("waiting for a combined call: %w", ctx.Err())
	}
	switch mustCall := c.enqueue(key, w); {
	case !mustCall:
	case c.mustLinger(key): // ctx may end meanwhile, so another goroutine makes the call
		c.OnPanic.Go("making a combined call", func() { c.runCalls(key) })
	default:
		c.callAndRetry(key, c.takeNextCallers(key)) //nolint:contextcheck // the call also serves other callers, so the ctx of this caller must not end it
		if c.continueOrStop(key) {
			c.OnPanic.Go("making a combined call", func() { c.runCalls(key) })
		}
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if c.dequeue(key, w) {
			return w.out, fmt.Errorf("waiting for a combined call: %w", ctx.Err())
		}
		<-w.done
	}
	return w.out, w.err
}

// enqueue adds waiter to the queue of key. If mustCall is true, no call of key is in progress, and the caller of enqueue must make the next
// call.
func (c *Calls[Key, In, Out]) enqueue(key Key, waiter *caller[In, Out]) (mustCall bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queues == nil {
		c.queues = make(map[Key]*keyQueue[In, Out])
	}
	q := c.queues[key]
	if q == nil {
		q = &keyQueue[In, Out]{}
		c.queues[key] = q
	}
	q.waiting = append(q.waiting, waiter)
	mustCall = q.runningCalls == 0
	if mustCall || q.runningCalls < c.MaxConcurrent && len(q.waiting) >= c.MinWaiting {
		q.runningCalls++
		if !mustCall {
			c.OnPanic.Go("making a combined call", func() { c.runCalls(key) })
		}
	}
	return mustCall
}

// dequeue removes waiter from the queue of key. wasWaiting is false if a call has already taken waiter from the queue.
func (c *Calls[Key, In, Out]) dequeue(key Key, waiter *caller[In, Out]) (wasWaiting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[key]
	if q == nil {
		return false
	}
	i := slices.Index(q.waiting, waiter)
	if i >= 0 {
		q.waiting = slices.Delete(slices.Clone(q.waiting), i, i+1) // a call in progress uses the same array
	}
	return i >= 0
}

// runCalls makes calls for the waiting callers of key, under load after Linger, until none waits.
func (c *Calls[Key, In, Out]) runCalls(key Key) {
	for c.continueOrStop(key) {
		if c.mustLinger(key) {
			<-time.After(c.Linger)
		}
		c.callAndRetry(key, c.takeNextCallers(key))
	}
}

// mustLinger reports whether the next call of key must wait for Linger.
func (c *Calls[Key, In, Out]) mustLinger(key Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Linger > 0 && c.latest > 1 && len(c.queues[key].waiting) < c.MinWaiting
}

// continueOrStop reports whether callers of key still wait for a call. If none waits, it lowers runningCalls, and the goroutine that makes the
// calls must stop.
func (c *Calls[Key, In, Out]) continueOrStop(key Key) (mustContinue bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[key]
	if len(q.waiting) > 0 {
		return true
	}
	if q.runningCalls--; q.runningCalls == 0 {
		delete(c.queues, key)
	}
	return false
}

// takeNextCallers removes the callers of the next call from the queue and returns them. It returns none if a concurrent call has taken all.
func (c *Calls[Key, In, Out]) takeNextCallers(key Key) []*caller[In, Out] {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, n := c.queues[key], 0
	for size := 0; n < len(q.waiting); n++ {
		if c.Size == nil {
			size++
		} else {
			size += c.Size(q.waiting[n].in)
		}
		if size > c.MaxSize && n > 0 {
			break
		}
	}
	callers := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; n > 0 {
		c.latest = n
	}
	return callers
}

// callAndRetry makes one call for all callers. If the call fails and MayRetryAlone permits it, callAndRetry repeats the call for each caller
// alone.
func (c *Calls[Key, In, Out]) callAndRetry(key Key, callers []*caller[In, Out]) {
	ctx := context.Background()
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	if callers = c.dropLateCallers(ctx, callers); len(callers) == 0 {
		return
	}
	err := c.callOnce(ctx, key, callers)
	retryAlone := err != nil && len(callers) > 1 && c.MayRetryAlone(err)
	for i, w := range callers {
		w.err = err
		if retryAlone {
			w.err = c.callOnce(ctx, key, callers[i:i+1])
		}
		close(w.done)
	}
}

// dropLateCallers ends the wait of callers that have too little time left for the call. They get context.DeadlineExceeded. It returns the other
// callers.
func (c *Calls[Key, In, Out]) dropLateCallers(callCtx context.Context, callers []*caller[In, Out]) []*caller[In, Out] {
	end, hasDeadline := callCtx.Deadline()
	return slices.DeleteFunc(callers, func(w *caller[In, Out]) bool {
		late := hasDeadline && !w.deadline.IsZero() && w.deadline.Before(end)
		if late {
			w.err = fmt.Errorf("less than %s is left: %w", c.Timeout, context.DeadlineExceeded)
			close(w.done)
		}
		return late
	})
}

// callOnce makes one call for callers and stores their outcomes. It returns a panic as an error, so that no caller waits forever.
func (c *Calls[Key, In, Out]) callOnce(ctx context.Context, key Key, callers []*caller[In, Out]) error {
	all := make([]In, len(callers))
	for i, w := range callers {
		all[i] = w.in
	}
	var outcomes []Out
	err := c.OnPanic.Report("making a combined call", rescue.Call(func() (err error) {
		outcomes, err = c.Call(ctx, key, all)
		return err
	}))
	if err != nil {
		return err
	}
	for i, w := range callers {
		w.out = outcomes[i]
	}
	return nil
}

package coalesce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/test/await"
)

// errUnknown is the error of a call that may have taken effect although it failed.
var errUnknown = errors.New("outcome unknown")

func isCertain(err error) bool { return !errors.Is(err, errUnknown) }

// blockedCalls makes the calls in the tests. Each call blocks until the test ends it over the channel endCall.
type blockedCalls struct {
	*Calls[string, int, int]
	t          *testing.T
	begunCalls chan []int // receives the requests of each call that has begun
	endCall    chan error // ends one call, with this error
}

// newCalls returns Calls with at most one call of each key in progress. A call has at most maxRequests requests. limit is its time limit.
func newCalls(call func(context.Context, string, []int) ([]int, error), maxRequests int, limit time.Duration) *Calls[string, int, int] {
	return &Calls[string, int, int]{Call: call, MayRetryAlone: isCertain, MaxConcurrent: 1, MaxSize: maxRequests, Timeout: limit}
}

// newBlockedCalls returns blockedCalls. lanes is the maximum number of concurrent calls of one key. A call has at most three requests.
func newBlockedCalls(t *testing.T, lanes int) *blockedCalls {
	t.Helper()
	r := &blockedCalls{t: t, begunCalls: make(chan []int), endCall: make(chan error)}
	r.Calls = &Calls[string, int, int]{Call: r.double, MayRetryAlone: isCertain, MaxConcurrent: lanes, MaxSize: 3, Timeout: time.Hour}
	return r
}

// double is the call that the tests make: it doubles each number.
func (r *blockedCalls) double(_ context.Context, _ string, all []int) ([]int, error) {
	r.begunCalls <- all
	if err := <-r.endCall; err != nil {
		return nil, err
	}
	out := make([]int, len(all))
	for i, n := range all {
		out[i] = 2 * n
	}
	return out, nil
}

// callerOutcome is the result or the error that one caller gets.
type callerOutcome struct {
	in, out int
	err     error
}

// startCaller starts a caller. in is the caller's request. startCaller returns as soon as the caller waits or its call has begun.
func (r *blockedCalls) startCaller(ctx context.Context, key string, in int) <-chan callerOutcome {
	r.t.Helper()
	before := r.callerCount(key)
	there := make(chan callerOutcome, 1)
	go func() {
		out, err := r.Do(ctx, key, in)
		there <- callerOutcome{in, out, err}
	}()
	await.True(r.t, "a caller waits or was called for", func() bool { return r.callerCount(key) != before })
	return there
}

// callerCount returns how many callers of this key wait, plus 1000 for each call of the key in progress.
func (r *blockedCalls) callerCount(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.queues[key]
	if of == nil {
		return 0
	}
	return len(of.waiting) + 1000*of.runningCalls
}

func (r *blockedCalls) expectCall(want ...int) {
	r.t.Helper()
	var got []int
	got = await.Receive(r.t, r.begunCalls, fmt.Sprintf("no call with %v", want))
	got = slices.Sorted(slices.Values(got)) // the order of arrival is not fixed
	if !slices.Equal(got, want) {
		r.t.Errorf("a call with %v, want %v", got, want)
	}
}

func (r *blockedCalls) expectDoubled(callers ...<-chan callerOutcome) {
	r.t.Helper()
	for _, caller := range callers {
		if a := <-caller; a.err != nil || a.out != 2*a.in {
			r.t.Errorf("caller %d got %d, %v", a.in, a.out, a.err)
		}
	}
}

func (r *blockedCalls) expectNoKeys() {
	r.t.Helper()
	await.True(r.t, "no key is kept", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.queues) == 0
	})
}

// TestACallGoesAtOnceAndTakesWhatCameMeanwhile checks when requests are sent. A request must be sent at once while
// fewer than MaxConcurrent calls are in progress. Requests that arrive later must be sent together, at most MaxSize of
// them, and each must get its own outcome.
func TestACallGoesAtOnceAndTakesWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	r := newBlockedCalls(t, 2)
	first := r.startCaller(t.Context(), "a", 1)
	r.expectCall(1)
	second := r.startCaller(t.Context(), "a", 2)
	r.expectCall(2)
	var later []<-chan callerOutcome
	for in := 3; in <= 6; in++ {
		later = append(later, r.startCaller(t.Context(), "a", in))
	}
	r.endCall <- nil // ends either of the two calls
	r.expectCall(3, 4, 5)
	r.endCall <- nil
	r.expectCall(6)
	r.endCall <- nil
	r.endCall <- nil
	r.expectDoubled(first, second)
	r.expectDoubled(later...)
	r.expectNoKeys()
}

// TestCallsOfOtherKeysDoNotWait checks a call of one key that blocks, for example because a pool is locked: the
// calls of other keys are not delayed.
func TestCallsOfOtherKeysDoNotWait(t *testing.T) {
	t.Parallel()
	r := newBlockedCalls(t, 1)
	stuck := r.startCaller(t.Context(), "a", 1)
	r.expectCall(1)
	other := r.startCaller(t.Context(), "b", 2)
	r.expectCall(2)
	r.endCall <- nil
	r.endCall <- nil
	r.expectDoubled(stuck, other)
}

// TestACallThatFailsIsMadeForEachAlone checks a call that fails because of one bad request: it is repeated for each
// request alone, so that the others succeed. If the call may have taken effect, it is not repeated.
func TestACallThatFailsIsMadeForEachAlone(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad")
	t.Run("for certain", func(t *testing.T) {
		t.Parallel()
		r := newBlockedCalls(t, 1)
		callers := r.startThree()
		r.endCall <- bad
		r.expectCall(2)
		r.endCall <- nil
		r.expectCall(3)
		r.endCall <- bad
		r.expectCall(4)
		r.endCall <- nil
		r.expectDoubled(callers[0], callers[2])
		if a := <-callers[1]; !errors.Is(a.err, bad) {
			t.Errorf("the bad one got %d, %v", a.out, a.err)
		}
		r.expectNoKeys()
	})
	t.Run("or perhaps not", func(t *testing.T) {
		t.Parallel()
		r := newBlockedCalls(t, 1)
		callers := r.startThree()
		r.endCall <- fmt.Errorf("lost: %w", errUnknown)
		for _, caller := range callers {
			if a := <-caller; !errors.Is(a.err, errUnknown) {
				t.Errorf("caller %d got %d, %v", a.in, a.out, a.err)
			}
		}
		r.expectNoKeys()
	})
}

// startThree starts the callers 2, 3 and 4. It returns when one call with the requests of all three has begun.
func (r *blockedCalls) startThree() (callers []<-chan callerOutcome) {
	r.t.Helper()
	first := r.startCaller(r.t.Context(), "a", 1)
	r.expectCall(1)
	for in := 2; in <= 4; in++ {
		callers = append(callers, r.startCaller(r.t.Context(), "a", in))
	}
	r.endCall <- nil
	r.expectDoubled(first)
	r.expectCall(2, 3, 4)
	return callers
}

// TestACallerThatGivesUpIsNotCalledFor checks a caller whose context ends. If the caller still waits, its request
// is not sent. If its call is in progress, the outcome is awaited, because the call takes effect.
func TestACallerThatGivesUpIsNotCalledFor(t *testing.T) {
	t.Parallel()
	r := newBlockedCalls(t, 1)
	ctx, giveUp := context.WithCancel(t.Context())
	left := r.startCaller(ctx, "a", 1)
	r.expectCall(1)
	waits := r.startCaller(ctx, "a", 2)
	stays := r.startCaller(t.Context(), "a", 3)
	giveUp()
	if a := <-waits; !errors.Is(a.err, context.Canceled) {
		t.Errorf("who gave up got %d, %v", a.out, a.err)
	}
	r.endCall <- nil
	r.expectDoubled(left)
	r.expectCall(3)
	r.endCall <- nil
	r.expectDoubled(stays)
}

// TestACallerWithLittleTimeEndsNobodysCall checks a caller that has too little time left: it is left out of the
// call that the other callers share.
func TestACallerWithLittleTimeEndsNobodysCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate, calls := make(chan struct{}), 0
		c := newCalls(func(ctx context.Context, _ string, all []int) ([]int, error) {
			calls++
			<-gate
			select {
			case <-time.After(3 * time.Second):
				return slices.Clone(all), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, 10, 5*time.Second)
		short, cancel := context.WithTimeout(t.Context(), 7*time.Second) // 4 s of it are left when the next call starts
		defer cancel()
		var wait sync.WaitGroup
		send := func(ctx context.Context, in int, failed error) {
			wait.Go(func() {
				if _, err := c.Do(ctx, "a", in); !errors.Is(err, failed) {
					t.Errorf("caller %d: %v, want %v", in, err, failed)
				}
			})
			synctest.Wait() // the caller waits for the gate or for the call in progress
		}
		send(t.Context(), 0, nil)
		send(short, 1, context.DeadlineExceeded)
		send(t.Context(), 2, nil)
		send(t.Context(), 3, nil)
		close(gate)
		wait.Wait()
		if calls != 2 {
			t.Errorf("%d calls, want one for the first and one for the others", calls)
		}
	})
}

// TestACallThatPanicsLeavesNobodyBehind checks a call that panics: all of its callers get an error.
func TestACallThatPanicsLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	c := newCalls(func(context.Context, string, []int) ([]int, error) { panic("for the test") }, 3, time.Hour)
	for range 2 {
		_, err := c.Do(t.Context(), "a", 1)
		if _, panicked := errors.AsType[*rescue.Panic](err); !panicked {
			t.Errorf("got %v", err)
		}
	}
}

// TestCallsUnderLoad checks many concurrent callers: each gets its own outcome, and there are far fewer calls than
// callers.
func TestCallsUnderLoad(t *testing.T) {
	t.Parallel()
	const callers = 500
	calls := 0
	gate := make(chan struct{})
	c := newCalls(func(_ context.Context, _ string, all []int) ([]int, error) {
		<-gate
		calls++ // at most one call is in progress, so no lock is needed
		return slices.Clone(all), nil
	}, 50, time.Hour)
	var wait sync.WaitGroup
	for in := range callers {
		wait.Go(func() {
			if out, err := c.Do(t.Context(), "a", in); err != nil || out != in {
				t.Errorf("caller %d got %d, %v", in, out, err)
			}
		})
	}
	await.True(t, "all but the first, whose call is under way, wait", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		of := c.queues["a"]
		return of != nil && len(of.waiting) == callers-1
	})
	close(gate)
	wait.Wait()
	if calls > 2*callers/50 {
		t.Errorf("%d calls for %d callers", calls, callers)
	}
}

// TestACallIsAsLargeAsMayBe checks the size of a call: its requests have a total size of at most MaxSize, or it has
// a single request that is larger.
func TestACallIsAsLargeAsMayBe(t *testing.T) {
	t.Parallel()
	r := newBlockedCalls(t, 1)
	r.Size = func(in int) int { return in }
	first := r.startCaller(t.Context(), "a", 1)
	r.expectCall(1)
	var later []<-chan callerOutcome
	for _, in := range []int{2, 1, 3, 7, 1} { // a call takes a total size of at most three
		later = append(later, r.startCaller(t.Context(), "a", in))
	}
	for _, want := range [][]int{{1, 2}, {3}, {7}, {1}} {
		r.endCall <- nil
		r.expectCall(want...)
	}
	r.endCall <- nil
	r.expectDoubled(first)
	r.expectDoubled(later...)
	r.expectNoKeys()
}

// TestASecondCallBeginsWhenEnoughWait checks the setting MinWaiting. If fewer than MinWaiting callers wait, no second call begins, and these
// callers wait for the call in progress.
func TestASecondCallBeginsWhenEnoughWait(t *testing.T) {
	t.Parallel()
	r := newBlockedCalls(t, 2)
	r.MinWaiting = 2
	first := r.startCaller(t.Context(), "k", 1)
	r.expectCall(1)
	second := r.startCaller(t.Context(), "k", 2)
	if n := r.callerCount("k"); n != 1001 {
		t.Fatalf("%d, want one call under way and one that waits", n)
	}
	third := r.startCaller(t.Context(), "k", 3)
	r.expectCall(2, 3)
	r.endCall <- nil
	r.endCall <- nil
	r.expectDoubled(first, second, third)
	r.expectNoKeys()
}

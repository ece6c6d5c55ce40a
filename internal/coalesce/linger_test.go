package coalesce

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestACallLingersOnlyUnderLoad checks when a call waits for more callers: only if the latest call had several callers, and fewer than MinWaiting
// wait.
func TestACallLingersOnlyUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const linger, duration = time.Millisecond, time.Second
		var sizes []int
		c := newCalls(func(_ context.Context, _ string, all []int) ([]int, error) {
			sizes = append(sizes, len(all))
			<-time.After(duration)
			return all, nil
		}, 10, 0)
		c.Linger, c.MinWaiting = linger, 4
		begin := func(callers int) {
			for range callers {
				go func() { _, _ = c.Do(t.Context(), "k", 1) }()
				synctest.Wait()
			}
		}
		expect := func(when string, want ...int) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(sizes, want) {
				t.Errorf("%s: calls with %v callers, want %v", when, sizes, want)
			}
		}
		begin(1)
		expect("a first caller", 1)
		begin(4)
		<-time.After(duration)
		expect("as many as MinWaiting, after a call with one", 1, 4)
		<-time.After(duration)
		begin(1)
		expect("one after a call with several", 1, 4)
		<-time.After(linger / 2)
		begin(1)
		<-time.After(linger / 2)
		expect("another one in the same millisecond", 1, 4, 2)
		begin(4)
		<-time.After(duration)
		expect("as many as MinWaiting, after a call with several", 1, 4, 2, 4)
		<-time.After(duration)
		begin(1)
		<-time.After(linger)
		expect("one alone after a call with several", 1, 4, 2, 4, 1)
		<-time.After(duration)
		begin(1)
		expect("one after a call with one", 1, 4, 2, 4, 1, 1)
		<-time.After(duration)
	})
}

// TestACallerThatGivesUpWhileItsCallLingersIsNotCalledFor checks that a call does not include a caller whose ctx ends while the call waits for
// more callers. It also checks that a call of nobody does not count as the latest call.
func TestACallerThatGivesUpWhileItsCallLingersIsNotCalledFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		c := newCalls(func(_ context.Context, _ string, all []int) ([]int, error) {
			calls++
			return all, nil
		}, 10, 0)
		c.Linger, c.MinWaiting, c.latest = time.Millisecond, 4, 2
		ctx, cancel := context.WithTimeout(t.Context(), c.Linger/2)
		defer cancel()
		if _, err := c.Do(ctx, "k", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want that its context ended", err)
		}
		<-time.After(c.Linger)
		synctest.Wait()
		if calls != 0 || len(c.queues) > 0 || c.latest != 2 {
			t.Errorf("%d calls, %d queues are left, the latest call had %d callers", calls, len(c.queues), c.latest)
		}
	})
}

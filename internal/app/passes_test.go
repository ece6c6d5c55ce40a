package app

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The tests of passes run in synctest bubbles with a fake clock: the clock advances only when every goroutine
// waits.

// advanceTime advances the fake clock by d. It returns when everything that is due by then has happened.
func advanceTime(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// startPasses starts these passes and stops them at the end of the test.
func startPasses(t *testing.T, all ...*pass) *passes {
	t.Helper()
	p := newPasses(slog.New(slog.DiscardHandler), nil, all...)
	p.start()
	t.Cleanup(func() {
		if err := p.stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	synctest.Wait()
	return p
}

func countingPass(runs *atomic.Int32, every time.Duration) *pass {
	return &pass{name: "healthy", every: every, limit: time.Second, run: func(context.Context) error {
		runs.Add(1)
		return nil
	}}
}

func TestPassRunsAtOnceAndThenEveryInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		startPasses(t, countingPass(&runs, 5*time.Second))
		if got := runs.Load(); got != 1 {
			t.Fatalf("%d runs at the start, want 1", got)
		}
		advanceTime(time.Minute + time.Second)
		if got := runs.Load(); got != 13 {
			t.Errorf("%d runs in a minute of 5 s intervals, want 13", got)
		}
	})
}

func TestPassThatFailsOrPanicsRunsAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() error{
		"error": func() error { return errors.New("broken") },
		"panic": func() error { panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var runs, others atomic.Int32
				bad := &pass{name: "bad", every: time.Second, limit: time.Second, run: func(context.Context) error {
					runs.Add(1)
					return end()
				}}
				startPasses(t, bad, countingPass(&others, time.Second))
				advanceTime(10 * time.Second)
				if runs.Load() < 10 || others.Load() < 10 {
					t.Errorf("%d runs of the bad pass and %d of another in 10 s, want 10 of each", runs.Load(), others.Load())
				}
			})
		})
	}
}

func TestPassNeverRunsBesideItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var inside, most, runs atomic.Int32
		slow := &pass{name: "slow", every: time.Second, limit: 10 * time.Second, run: func(ctx context.Context) error {
			runs.Add(1)
			most.Store(max(most.Load(), inside.Add(1)))
			defer inside.Add(-1)
			select {
			case <-time.After(3500 * time.Millisecond):
			case <-ctx.Done():
			}
			return nil
		}}
		startPasses(t, slow)
		advanceTime(20 * time.Second)
		if most.Load() != 1 || runs.Load() < 4 {
			t.Errorf("%d runs, at most %d at once; want several, one at a time", runs.Load(), most.Load())
		}
	})
}

func TestPassThatHangsIsEndedByItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs, others atomic.Int32
		hangs := &pass{name: "hangs", every: time.Second, limit: 5 * time.Second, run: func(ctx context.Context) error {
			runs.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}}
		startPasses(t, hangs, countingPass(&others, time.Second))
		advanceTime(30 * time.Second)
		if runs.Load() < 5 || others.Load() < 30 {
			t.Errorf("%d runs of the hanging pass and %d of another in 30 s; want 5 and 30", runs.Load(), others.Load())
		}
	})
}

// hangingPass returns a pass whose run number hangingRun hangs and ignores its context. Its other runs return at once.
func hangingPass(runs *atomic.Int32, hangingRun int32, release <-chan struct{}) *pass {
	return &pass{name: "deaf", every: time.Second, limit: 2 * time.Second, run: func(context.Context) error {
		if runs.Add(1) == hangingRun {
			<-release
		}
		return nil
	}}
}

func TestPassThatHangsForEverIsLeftBehind(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]int32{"first run": 1, "later run": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				release := make(chan struct{})
				startPasses(t, hangingPass(&runs, hangs, release))
				advanceTime(3 * time.Second)
				if got := runs.Load(); got != hangs {
					t.Errorf("%d runs before twice the limit, want %d", got, hangs)
				}
				advanceTime(12 * time.Second)
				if got := runs.Load(); got < 5 {
					t.Errorf("%d runs after twice the limit, want many", got)
				}
				close(release)
			})
		})
	}
}

func TestLateEndOfAnOldRunDoesNotEndTheNewOne(t *testing.T) {
	t.Parallel()
	o := &pass{limit: time.Second}
	start := time.Now()
	old, _ := o.beginRun(start)
	fresh, ok := o.beginRun(start.Add(2 * time.Second))
	if !ok {
		t.Fatal("a run that hangs for twice its limit is still in the way")
	}
	o.endRun(old)
	if _, ok := o.beginRun(start.Add(3 * time.Second)); ok {
		t.Error("a third run beside the second")
	}
	o.endRun(fresh)
	if _, ok := o.beginRun(start.Add(3 * time.Second)); !ok {
		t.Error("no run after the second has ended")
	}
}

func TestStopWaitsForPassesUnderWayButNotForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release, left := make(chan struct{}), make(chan struct{})
		p := newPasses(slog.New(slog.DiscardHandler), nil, &pass{name: "deaf", every: time.Second, limit: time.Minute, run: func(context.Context) error {
			defer close(left)
			<-release
			return nil
		}})
		p.start()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		before := time.Now()
		if err := p.stop(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(before) != 3*time.Second {
			t.Errorf("stop with a run that does not end: %v after %s; want the deadline's error after 3 s", err, time.Since(before))
		}
		close(release)
		if err := p.stop(t.Context()); err != nil {
			t.Errorf("stop with a run that ends: %v", err)
		}
		select {
		case <-left:
		default:
			t.Error("stop did not wait for the run")
		}
	})
}

func TestStopEndsTheContextOfPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		p := newPasses(slog.New(slog.DiscardHandler), nil, &pass{name: "long", every: time.Second, limit: time.Hour, run: func(ctx context.Context) error {
			runs.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}})
		p.start()
		synctest.Wait()
		before := time.Now()
		if err := p.stop(t.Context()); err != nil || time.Since(before) != 0 {
			t.Errorf("stop: %v after %s", err, time.Since(before))
		}
		advanceTime(10 * time.Second)
		if got := runs.Load(); got != 1 {
			t.Errorf("%d runs, want none after the stop", got-1)
		}
	})
}

package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
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
	for name, hangs := range map[string]int32{"cron": 1, "ticker alone": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				release := make(chan struct{})
				p := startPasses(t, hangingPass(&runs, hangs, release))
				if hangs == 2 { // the ticker starts this run
					p.cron.Stop()
				}
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

// TestPassesGoOnWhenCronIsSilent checks that passes also run if the library cron starts none. Cron waits by the
// wall clock. If this clock steps back by an hour, cron starts nothing for an hour. In this test, cron is stopped
// instead.
func TestPassesGoOnWhenCronIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		p := startPasses(t, countingPass(&runs, 5*time.Second))
		<-p.cron.Stop().Done()
		advanceTime(time.Minute + time.Second)
		if got := runs.Load(); got < 6 {
			t.Errorf("%d runs in a minute without cron, want one in 10 s at least", got)
		}
	})
}

func TestOverdueIsByElapsedTime(t *testing.T) {
	t.Parallel()
	start := time.Now()
	o := &pass{every: 5 * time.Second, limit: time.Second}
	run, _ := o.beginRun(start)
	o.endRun(run)
	for after, want := range map[time.Duration]bool{0: false, 9 * time.Second: false, 10 * time.Second: true, time.Hour: true} {
		if got := o.isOverdue(start.Add(after)); got != want {
			t.Errorf("overdue %s after the last start: %t, want %t", after, got, want)
		}
	}
	// The times that the program compares have a monotonic part. A step of the wall clock does not change this
	// part.
	if !strings.Contains(start.String(), "m=+") {
		t.Error("time.Now has no monotonic reading here")
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

// TestSkipIfStillRunningOfCronWedgesAfterAPanic shows why the program has its own guard against concurrent runs of
// a pass. The one of the library (SkipIfStillRunning of cron v3.0.1) returns its token only after a run that
// returns, and not after a panic.
func TestSkipIfStillRunningOfCronWedgesAfterAPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var theirs, ours atomic.Int32
		var once, onceOurs sync.Once
		job := cron.FuncJob(func() {
			theirs.Add(1)
			once.Do(func() { panic("broken once") })
		})
		c := cron.New(cron.WithChain(cron.Recover(cron.DiscardLogger), cron.SkipIfStillRunning(cron.DiscardLogger)))
		c.Schedule(cron.Every(time.Second), job)
		c.Start()
		startPasses(t, &pass{name: "same", every: time.Second, limit: time.Second, run: func(context.Context) error {
			ours.Add(1)
			onceOurs.Do(func() { panic("broken once") })
			return nil
		}})
		advanceTime(30 * time.Second)
		<-c.Stop().Done()
		if got := theirs.Load(); got != 1 {
			t.Errorf("cron ran the job %d times: SkipIfStillRunning no longer wedges, and our guard has lost its reason", got)
		}
		if got := ours.Load(); got < 30 {
			t.Errorf("our guard ran the pass %d times in 30 s", got)
		}
	})
}

package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// pass is one background pass.
type pass struct {
	name  string
	every time.Duration // interval
	limit time.Duration // time limit of one run
	run   func(context.Context) error
	quiet bool // its failures are logged at level debug, because it runs often and other passes fail for the same reasons

	mu         sync.Mutex
	currentRun int       // number of the run in progress; 0 means that no run is in progress
	runCount   int       // runs started so far
	started    time.Time // start of the latest run
	lastGood   time.Time // when a run last ended without an error
	failed     bool      // the run that ended last failed
}

// passes runs the background passes at the times that the library robfig/cron computes. passes itself prevents concurrent
// runs of a pass, because cron's SkipIfStillRunning (v3.0.1) never runs a job again after a panic. Cron uses the wall
// clock, which may be set back. Therefore a ticker also starts the passes that are overdue by elapsed time.
type passes struct {
	cron       *cron.Cron
	all        []*pass
	background []func(ctx context.Context)
	log        *slog.Logger
	now        func() time.Time

	ctx    context.Context //nolint:containedctx // the life of the passes, ended by stop
	cancel context.CancelFunc
	wait   rescue.ReportingGroup
}

// interval is a cron schedule with a constant interval. cron.Every would round the interval to
// whole seconds.
type interval time.Duration

// Next returns the time of the run after now: one interval later.
func (i interval) Next(now time.Time) time.Time { return now.Add(time.Duration(i)) }

// newPasses returns passes that do not run before start is called. If a pass panics, panicked is called with the panic.
func newPasses(log *slog.Logger, panicked rescue.PanicHandler, all ...*pass) *passes {
	ctx, cancel := context.WithCancel(context.Background())
	return &passes{cron: cron.New(cron.WithLocation(time.UTC)), all: all, log: log, now: time.Now, ctx: ctx, cancel: cancel, wait: rescue.ReportingGroup{OnPanic: panicked}}
}

// start runs each pass at once, and then at its interval.
func (p *passes) start() {
	for _, one := range p.all {
		p.cron.Schedule(interval(one.every), cron.FuncJob(func() { p.runOnce(one) }))
		p.wait.Go("watching "+one.name, func() { p.runAtStartAndWhenOverdue(one) })
	}
	p.cron.Start()
	for _, run := range p.background {
		p.wait.Go("running background work", func() { run(p.ctx) })
	}
}

// addBackground registers a function that is not a pass. start runs it until stop ends its context.
func (p *passes) addBackground(run func(ctx context.Context)) {
	p.background = append(p.background, run)
}

// stop ends the passes, and waits for the runs in progress until ctx ends.
func (p *passes) stop(ctx context.Context) error { //nolint:contextcheck // cron.Stop returns a context of its own
	p.cancel()
	running := p.cron.Stop()
	err := rescue.CallWithin(ctx, func() error {
		<-running.Done()
		p.wait.Wait()
		return nil
	})
	if err != nil {
		return fmt.Errorf("background passes are still running (%s): %w", strings.Join(p.runningPassNames(), ", "), err)
	}
	return nil
}

func (p *passes) runningPassNames() []string {
	var names []string
	for _, one := range p.all {
		if one.isRunning() {
			names = append(names, one.name)
		}
	}
	return names
}

// runAtStartAndWhenOverdue runs the pass job at once. After that, it runs job only if no run of job has started for twice
// its interval.
func (p *passes) runAtStartAndWhenOverdue(job *pass) {
	p.wait.Go(job.name, func() { p.runOnce(job) })
	tick := time.NewTicker(job.every)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
			if job.isOverdue(p.now()) {
				p.wait.Go(job.name, func() { p.runOnce(job) }) // a run that hangs must not block the ticker
			}
		}
	}
}

// runOnce runs the pass job unless a run of job is in progress. A run that has lasted twice its limit is abandoned, and the next run starts
// while the abandoned one may still run. This is safe, because several replicas run the same pass concurrently anyway.
func (p *passes) runOnce(job *pass) {
	if p.ctx.Err() != nil {
		return
	}
	run, ok := job.beginRun(p.now())
	if !ok {
		return
	}
	defer job.endRun(run)
	ctx, cancel := context.WithTimeout(p.ctx, job.limit)
	defer cancel()
	err := p.wait.OnPanic.Report(job.name, rescue.Call(func() error { return job.run(ctx) }))
	job.recordResult(err, p.now())
	if err != nil && p.ctx.Err() == nil {
		level := slog.LevelWarn
		if job.quiet {
			level = slog.LevelDebug
		}
		p.log.Log(ctx, level, "background pass failed", "pass", job.name, "err", err)
	}
}

// beginRun records that a run begins, and returns the number of the run. ok is false if another run is in progress that began less than two
// time limits ago.
func (o *pass) beginRun(now time.Time) (runID int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.currentRun != 0 && now.Sub(o.started) < 2*o.limit {
		return 0, false
	}
	o.runCount++
	o.currentRun, o.started = o.runCount, now
	return o.runCount, true
}

func (o *pass) endRun(runID int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.currentRun == runID {
		o.currentRun = 0
	}
}

// recordResult records that a run ended at the time now. err is the error of the run, or nil.
func (o *pass) recordResult(err error, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed = err != nil; !o.failed {
		o.lastGood = now
	}
}

func (o *pass) isRunning() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.currentRun != 0
}

// isOverdue reports whether the latest run began at least two intervals before now.
func (o *pass) isOverdue(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return now.Sub(o.started) >= 2*o.every
}

// Times of reapAfterLeaseEnds. A lapse is the end of a lease that its holder did not renew.
const (
	lapseReadEvery = time.Second           // longest time between two reads of the next end of a lease; no lease is much shorter
	lapseDelay     = 50 * time.Millisecond // delay after the end of a lease; leases that end within it are reaped together
)

// reapAfterLeaseEnds runs the pass reaper shortly after each lapse (end of a lease), so that the slot does not stay
// unused until the next regular run. nextLeaseEnd returns the time until the next lease ends.
func (p *passes) reapAfterLeaseEnds(ctx context.Context, reaper *pass, nextLeaseEnd func(context.Context) (left time.Duration, found bool, err error)) {
	for {
		wait, leaseEnds := untilLeaseEnds(ctx, nextLeaseEnd)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if leaseEnds {
			p.runOnce(reaper) //nolint:contextcheck // a run has the context of the passes
		}
	}
}

// untilLeaseEnds returns how long reapAfterLeaseEnds must wait, and whether a lease ends within this time. It does not log an outage of the
// ledger, because the passes log it.
func untilLeaseEnds(ctx context.Context, nextLeaseEnd func(context.Context) (left time.Duration, found bool, err error)) (wait time.Duration, leaseEnds bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	left, found, err := nextLeaseEnd(ctx)
	if err != nil || !found {
		return lapseReadEvery, false
	}
	return waitForLeaseEnd(left)
}

// waitForLeaseEnd returns how long reapAfterLeaseEnds must wait. untilLeaseEnd is the time until the next lease ends. leaseEnds is true
// if this lease ends during the wait. If untilLeaseEnd is below -lapseDelay, the last run of Reap did not end the grant because it
// did not trust the clock of the ledger. The wait is then lapseReadEvery.
func waitForLeaseEnd(untilLeaseEnd time.Duration) (wait time.Duration, leaseEnds bool) {
	switch {
	case untilLeaseEnd > lapseReadEvery:
		return lapseReadEvery, false
	case untilLeaseEnd < -lapseDelay:
		return lapseReadEvery, true
	}
	return max(untilLeaseEnd, 0) + lapseDelay, true
}

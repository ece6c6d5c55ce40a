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

// pass is one background pass. It runs at the interval every, for at most limit.
type pass struct {
	name  string
	every time.Duration
	limit time.Duration
	run   func(context.Context) error
	quiet bool // its failures are logged at level debug, because it runs often and other passes fail for the same reasons

	mu      sync.Mutex
	current int       // number of the run in progress; 0 means that no run is in progress
	runs    int       // runs started so far
	started time.Time // start of the latest run
	good    time.Time // when a run last ended without an error
	failed  bool      // the run that ended last failed
}

// passes runs the background passes. robfig/cron decides when. The guard around each pass is our own,
// because cron's SkipIfStillRunning (v3.0.1) keeps its token after a panic and then never runs the job
// again.
//
// Cron uses the wall clock, so a clock that steps back would stop it. Therefore a plain ticker also
// starts passes that are overdue by elapsed time.
type passes struct {
	cron    *cron.Cron
	all     []*pass
	besides []func(ctx context.Context)
	log     *slog.Logger
	now     func() time.Time

	ctx    context.Context //nolint:containedctx // the life of the passes, ended by stop
	cancel context.CancelFunc
	wait   rescue.Crew
}

// interval is a schedule with a constant interval. cron.Every would round the interval to seconds.
type interval time.Duration

// Next returns the time of the next run.
func (i interval) Next(now time.Time) time.Time { return now.Add(time.Duration(i)) }

func newPasses(log *slog.Logger, panicked rescue.Told, all ...*pass) *passes {
	ctx, cancel := context.WithCancel(context.Background())
	return &passes{cron: cron.New(cron.WithLocation(time.UTC)), all: all, log: log, now: time.Now, ctx: ctx, cancel: cancel, wait: rescue.Crew{Told: panicked}}
}

func (p *passes) start() {
	for _, one := range p.all {
		p.cron.Schedule(interval(one.every), cron.FuncJob(func() { p.attempt(one) }))
		p.wait.Go("watching "+one.name, func() { p.watch(one) })
	}
	p.cron.Start()
	for _, run := range p.besides {
		p.wait.Go("working beside the passes", func() { run(p.ctx) })
	}
}

// beside registers a function that is not a pass. start runs it until stop ends its context.
func (p *passes) beside(run func(ctx context.Context)) { p.besides = append(p.besides, run) }

// stop ends the passes, and waits for the runs in progress until ctx ends.
func (p *passes) stop(ctx context.Context) error { //nolint:contextcheck // cron makes a context of its own
	p.cancel()
	running := p.cron.Stop()
	err := rescue.Within(ctx, func() error {
		<-running.Done()
		p.wait.Wait()
		return nil
	})
	if err != nil {
		return fmt.Errorf("background passes still run (%s): %w", strings.Join(p.underway(), ", "), err)
	}
	return nil
}

// underway returns the names of the passes that run now.
func (p *passes) underway() []string {
	var names []string
	for _, one := range p.all {
		if one.busy() {
			names = append(names, one.name)
		}
	}
	return names
}

// watch runs a pass at once, and then whenever cron has not started it for twice its interval.
func (p *passes) watch(one *pass) {
	p.wait.Go(one.name, func() { p.attempt(one) })
	tick := time.NewTicker(one.every)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
			if one.overdue(p.now()) {
				p.wait.Go(one.name, func() { p.attempt(one) }) // a run that hangs must not block the ticker
			}
		}
	}
}

// attempt runs a pass unless a run is in progress. A run that still hangs after twice its limit,
// although its context has ended, is abandoned: the next run starts concurrently, as runs of other
// replicas do.
func (p *passes) attempt(one *pass) {
	if p.ctx.Err() != nil {
		return
	}
	run, ok := one.enter(p.now())
	if !ok {
		return
	}
	defer one.leave(run)
	ctx, cancel := context.WithTimeout(p.ctx, one.limit)
	defer cancel()
	err := p.wait.Told.Tell(one.name, rescue.Call(func() error { return one.run(ctx) }))
	one.ended(err, p.now())
	if err != nil && p.ctx.Err() == nil {
		level := slog.LevelWarn
		if one.quiet {
			level = slog.LevelDebug
		}
		p.log.Log(ctx, level, "background pass failed", "pass", one.name, "err", err)
	}
}

func (o *pass) enter(now time.Time) (run int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current != 0 && now.Sub(o.started) < 2*o.limit {
		return 0, false
	}
	o.runs++
	o.current, o.started = o.runs, now
	return o.runs, true
}

func (o *pass) leave(run int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current == run {
		o.current = 0
	}
}

// ended records how a run ended.
func (o *pass) ended(err error, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed = err != nil; !o.failed {
		o.good = now
	}
}

func (o *pass) busy() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current != 0
}

func (o *pass) overdue(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return now.Sub(o.started) >= 2*o.every
}

const (
	lapseLook  = time.Second           // interval at which the next end of a lease is read; no lease is much shorter
	lapseSlack = 50 * time.Millisecond // delay after the end of a lease; leases that end within it are reaped together
)

// onTime runs the reaper just after a lease has ended, so that the slot does not stay unused until the
// next regular run. It runs the same reaper as a regular run, and the next regular run reaps any lease
// that onTime misses.
func (p *passes) onTime(ctx context.Context, reap *pass, next func(context.Context) (left time.Duration, found bool, err error)) {
	for {
		wait, ends := untilLapse(ctx, next)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if ends {
			p.attempt(reap) //nolint:contextcheck // as cron does
		}
	}
}

// untilLapse returns how long to wait before the next look, and whether a lease will have ended then.
// It does not log an unreachable ledger, because the passes do.
func untilLapse(ctx context.Context, next func(context.Context) (left time.Duration, found bool, err error)) (wait time.Duration, ends bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	left, found, err := next(ctx)
	if err != nil || !found {
		return lapseLook, false
	}
	return waitFor(left)
}

// waitFor returns how long to wait for the end of a lease. If a lease ended a while ago and is still
// there, Reap did not trust the ledger's clock: reading the clock took long, or the clock stepped.
func waitFor(left time.Duration) (wait time.Duration, ends bool) {
	switch {
	case left > lapseLook:
		return lapseLook, false
	case left < -lapseSlack:
		return lapseLook, true
	}
	return max(left, 0) + lapseSlack, true
}

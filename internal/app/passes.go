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

// pass is one background pass: it runs every so often, for at most limit.
type pass struct {
	name  string
	every time.Duration
	limit time.Duration
	run   func(context.Context) error
	quiet bool // it runs so often that its failures are left to the others to tell

	mu      sync.Mutex
	current int       // number of the run under way; 0: none
	runs    int       // runs started so far
	started time.Time // of the latest
	good    time.Time // when a run last ended without an error
	failed  bool      // the run that ended last did
}

// passes drives the background work. robfig/cron says when; the guard around
// each pass is ours, because cron's own SkipIfStillRunning (v3.0.1) keeps its
// token after a panic and never runs the job again.
//
// Cron goes by the wall clock, so a clock that steps back would silence it; a
// plain ticker starts what is overdue by elapsed time.
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

// interval is a schedule; cron.Every would round it to seconds.
type interval time.Duration

// Next firing.
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

// beside has start run this, which is no pass, until stop ends its context.
func (p *passes) beside(run func(ctx context.Context)) { p.besides = append(p.besides, run) }

// stop ends the passes and waits for those under way, as long as ctx allows.
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

// underway names the passes that run now.
func (p *passes) underway() []string {
	var names []string
	for _, one := range p.all {
		if one.busy() {
			names = append(names, one.name)
		}
	}
	return names
}

// watch runs a pass at once, and then whenever cron has let it wait for twice
// its interval.
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
				p.wait.Go(one.name, func() { p.attempt(one) }) // one that hangs must not hold the ticker
			}
		}
	}
}

// attempt runs a pass unless it is under way. One that still hangs after twice
// its limit, though its context has ended, is left behind: the next run starts
// beside it, as passes of other replicas do.
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

// ended notes how a run ended.
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
	lapseLook  = time.Second           // how often the next end of a lease is looked for: no lease is much shorter
	lapseSlack = 50 * time.Millisecond // after it: what ends in that time is taken back together
)

// onTime runs the reaper just after a lease has ended, so that its slot does
// not stand empty until the pass comes by. It adds nothing to what a pass may do,
// and the pass finds whatever is missed here.
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

// untilLapse is when to look again, and whether a lease will have ended by then. The
// passes log a ledger that does not answer.
func untilLapse(ctx context.Context, next func(context.Context) (left time.Duration, found bool, err error)) (wait time.Duration, ends bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	left, found, err := next(ctx)
	if err != nil || !found {
		return lapseLook, false
	}
	return waitFor(left)
}

// waitFor is how long to wait for the end of a lease. One that ended a while ago is still
// there because Reap did not trust the ledger's clock at the time: a reading took
// long, or the clock stepped.
func waitFor(left time.Duration) (wait time.Duration, ends bool) {
	switch {
	case left > lapseLook:
		return lapseLook, false
	case left < -lapseSlack:
		return lapseLook, true
	}
	return max(left, 0) + lapseSlack, true
}

package simulator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// pollInterval is the time between two requests for the progress of the tasks.
const pollInterval = 250 * time.Millisecond

// callTimeout limits one such request, so that a dispatcher that hangs does not stop the progress line.
const callTimeout = 5 * time.Second

// Run simulates a fleet and an external system against a running dispatcher. It creates the pool unless it exists, queues tasks, lets the
// devices work until every task has ended, and compares the dispatcher's tasks with the devices' journals. It writes a progress line once a
// second.
//
// Run returns an error if the simulation could not be carried out. Summary.Err evaluates a completed simulation. When ctx ends, Run returns
// the summary so far: this is how an endless run ends.
func Run(ctx context.Context, c Config, progress io.Writer) (Summary, error) {
	s, err := newSimulation(ctx, c.withDefaults(), progress)
	if err != nil {
		return Summary{}, fmt.Errorf("simulation: %w", err)
	}
	defer func() { _ = s.external.Close() }()
	return s.run(ctx)
}

// simulation is a run in progress. Only one goroutine may use it.
type simulation struct {
	config   Config
	operator *Operator
	external *External
	fleet    *Fleet
	work     *workload
	lease    time.Duration // lease of the pool
	progress printer

	started time.Time
	lowered time.Time // when a capacity below the one in force was first observed
	before  histogram // handoffs that the dispatcher had measured before the run
	summary Summary
}

func newSimulation(ctx context.Context, c Config, progress io.Writer) (*simulation, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	operator, err := NewOperator(c.URL, c.OperatorToken)
	if err != nil {
		return nil, err
	}
	s := &simulation{config: c, operator: operator, progress: printer{to: progress}}
	pool, err := s.ensurePool(ctx)
	if err != nil {
		return nil, err
	}
	s.lease = time.Duration(orDefault(pool.LeaseMS, 300_000)) * time.Millisecond
	tokens, err := c.ownTokens(ctx, operator, &s.progress)
	if err != nil {
		return nil, err
	}
	if err := c.letIn(ctx, tokens); err != nil {
		return nil, err
	}
	leases := newLeases()
	if s.external, err = NewExternal(ctx, c.ExternalAddr, pool.Capacity, leases, s.raised); err != nil {
		return nil, err
	}
	s.fleet = newFleet(c, s.external.Addr(), tokens, leases)
	s.work = newWorkload(c, s.lease, s.operator, s.fleet)
	return s, nil
}

// ensurePool returns the pool's settings. It creates the pool if it does not exist.
func (s *simulation) ensurePool(ctx context.Context) (operators.Pool, error) {
	p, err := s.operator.Pools.Get(ctx, s.config.Pool)
	if !operators.Refused(err, http.StatusNotFound) {
		return p, err
	}
	settings := operators.PoolSettings{Capacity: s.config.Capacity}
	if s.config.Lease > 0 { // otherwise the server's default
		settings.LeaseMS = new(s.config.Lease.Milliseconds())
	}
	put, err := s.operator.Pools.Put(ctx, s.config.Pool, settings)
	return put.Pool, err
}

func (s *simulation) run(ctx context.Context) (Summary, error) {
	fleetCtx, stopFleet := context.WithCancel(ctx)
	defer stopFleet()
	s.started = time.Now()
	s.before = s.operator.handoffs(ctx, s.config.Pool)
	ended := make(chan struct{})
	begin := func() {
		defer close(ended)
		s.fleet.Run(fleetCtx)
	}
	if s.config.Introduce {
		go begin()
		s.introduce(ctx)
		s.wait(ctx, s.config.Rest)
	}
	if err := s.work.queue(ctx); err != nil {
		return Summary{}, fmt.Errorf("simulation: %w", err)
	}
	s.started = s.work.queued
	s.wait(ctx, time.Until(s.started))
	s.tell(s.config.Began)
	if !s.config.Introduce {
		go begin()
	}
	s.watch(ctx)
	s.drain(ctx)
	s.tell(s.config.Ended)
	s.measure(ctx)
	stopFleet()
	<-ended
	err := s.verify(ctx)
	s.conclude()
	return s.summary, err
}

func (*simulation) wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (*simulation) tell(listener func()) {
	if listener != nil {
		listener()
	}
}

// introduce waits until every device has received an answer.
func (s *simulation) introduce(ctx context.Context) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for s.fleet.Stats().Introduced < int64(s.config.Devices) {
		s.showProgress()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// watch polls until every task has ended, the timeout is over or ctx ends.
func (s *simulation) watch(ctx context.Context) {
	if !s.config.Endless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.config.Timeout)
		defer cancel()
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		s.poll(ctx)
		s.showProgress()
		if !s.filling() && s.work.finished() {
			s.summary.Makespan = time.Since(s.started)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// poll updates the state of the tasks. A dispatcher that does not answer, as in a test of faults, is asked again later.
func (s *simulation) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s.work.refresh(ctx)
	if s.work.waiting() > 0 {
		s.summary.Busy = time.Since(s.started)
		s.summary.BusyInside = s.external.Stats().InsideTime
	}
	if s.config.Endless {
		s.followCapacity(ctx)
		s.judgeFinished(ctx)
	}
	if s.filling() && s.work.waiting() <= int64(s.config.Devices/2) {
		s.work.setErr(s.work.queue(ctx))
	}
}

// filling reports whether tasks are still being added.
func (s *simulation) filling() bool {
	if s.config.Endless || s.config.Until == nil {
		return s.config.Endless
	}
	select {
	case <-s.config.Until:
		return false
	default:
		return true
	}
}

// judgeFinished compares the oldest batch with the journals once it has ended, and then drops it.
func (s *simulation) judgeFinished(ctx context.Context) {
	if len(s.work.batches) == 0 || !s.work.batches[0].finished() {
		return
	}
	b := s.work.batches[0]
	last, err := s.summary.judge(ctx, s.operator, s.fleet.ledger, b.Batch)
	if s.work.setErr(err); err != nil {
		return
	}
	s.fleet.ledger.forget(last)
	s.work.drop(b)
}

// drain waits a limited time until devices have received outcomes for all their results.
func (s *simulation) drain(ctx context.Context) {
	if s.config.Endless || !s.work.finished() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*s.config.Resend+2*s.config.Period+callTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for s.fleet.Unsettled() > 0 {
		select {
		case <-tick.C:
			s.showProgress()
		case <-ctx.Done():
			return
		}
	}
}

// verify compares every task with the devices' journals. It skips an interrupted run, which is not complete, and an endless run, which has
// compared each batch as it ended.
func (s *simulation) verify(ctx context.Context) error {
	s.summary.Interrupted = ctx.Err() != nil
	if s.config.Endless || s.summary.Interrupted {
		return nil
	}
	for _, b := range s.work.batches {
		if _, err := s.summary.judge(ctx, s.operator, s.fleet.ledger, b.Batch); err != nil {
			return fmt.Errorf("simulation: verifying batch %d: %w", b.ID, err)
		}
	}
	return nil
}

func (s *simulation) conclude() {
	s.summary.Pool = s.config.Pool
	s.summary.Capacity = s.external.Capacity()
	s.summary.Devices = s.config.Devices
	s.summary.Tasks, s.summary.Ended = s.work.totals()
	s.summary.Bound = s.work.planned / time.Duration(max(s.summary.Capacity, 1))
	s.summary.Ideal = s.work.ideal(s.summary.Capacity, s.config.RoundTrip, s.fleet.ledger.gone())
	s.summary.Fleet = s.fleet.Stats()
	s.summary.External = s.external.Stats()
	s.summary.Breaches = s.external.breaches(s.config.Margin)
	s.summary.Unsettled = s.fleet.Unsettled()
}

// measure computes the handoff times while the fleet is still running. The run ends with the last acknowledgement, unless tasks ended
// without one.
func (s *simulation) measure(ctx context.Context) {
	sum := &s.summary
	after := s.operator.handoffs(ctx, s.config.Pool).minus(s.before)
	sum.Handoff = handoff(s.external.Gaps(), s.fleet.ledger.start)
	sum.Handoff.Server = Quantiles{P50: after.quantile(0.50), P99: after.quantile(0.99)}
	if s.config.Endless || s.config.Until != nil || sum.Makespan == 0 {
		return
	}
	if last := s.fleet.ledger.lastSettled(); !s.work.lapsed() && s.fleet.Unsettled() == 0 && last.After(s.started) {
		sum.Makespan = last.Sub(s.started)
	}
	capacity := s.external.Capacity()
	whole := float64(capacity) * float64(sum.Makespan)
	sum.Idle.Start, sum.Idle.End = s.external.edges(s.started, s.started.Add(sum.Makespan))
	sum.Idle.Between = time.Duration(whole) - s.external.Stats().InsideTime - sum.Idle.Start - sum.Idle.End
	sum.Latest, sum.LongestWait = latest(s.fleet.ledger.firstStarts(), s.started, s.work.planned/time.Duration(max(capacity, 1)))
}

package simulator

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const pollInterval = 250 * time.Millisecond

// callTimeout is the time limit of one request to the operators' API during a run, so that the progress line continues if
// the dispatcher hangs.
const callTimeout = 5 * time.Second

// Run simulates a fleet and an external system against a running dispatcher. It creates the pool unless it exists, queues tasks, lets the
// devices work until every task has ended, and compares the dispatcher's tasks with the devices' journals. It writes a progress line once a
// second.
//
// Run returns an error if the simulation could not be carried out. Summary.Err evaluates a completed simulation. When ctx ends, Run returns
// the summary so far. An endless run ends only in this way.
func Run(ctx context.Context, config Config, progress io.Writer) (Summary, error) {
	s, err := newSimulation(ctx, config.withDefaults(), progress)
	if err != nil {
		return Summary{}, fmt.Errorf("simulation: %w", err)
	}
	defer func() { _ = s.external.Close() }()
	return s.run(ctx)
}

// simulation is a run in progress. Only one goroutine may use it, except for currentCapacity.
type simulation struct {
	config   Config
	operator *Operator
	external *External
	fleet    *Fleet
	work     *workload
	lease    time.Duration // lease of the pool
	progress printer

	started        time.Time
	loweredAt      time.Time // time at which a pool capacity below the capacity in force was first observed
	handoffsBefore histogram // handoffs that the dispatcher had measured before the run
	summary        Summary
}

// newSimulation prepares a run: it creates the pool, registers the devices and starts the external system.
func newSimulation(ctx context.Context, config Config, progress io.Writer) (*simulation, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	operator, err := NewOperator(config.URL, config.OperatorToken)
	if err != nil {
		return nil, err
	}
	s := &simulation{config: config, operator: operator, progress: printer{to: progress}}
	pool, err := s.ensurePool(ctx)
	if err != nil {
		return nil, err
	}
	s.lease = time.Duration(cmp.Or(pool.LeaseMS, 300_000)) * time.Millisecond
	tokens, err := config.registerDevices(ctx, operator, &s.progress)
	if err != nil {
		return nil, err
	}
	if err := config.checkAdmission(ctx, tokens); err != nil {
		return nil, err
	}
	leases := newLeases()
	if s.external, err = NewExternal(ctx, config.ExternalAddr, pool.Capacity, leases, s.currentCapacity); err != nil {
		return nil, err
	}
	s.fleet = newFleet(config, s.external.Addr(), tokens, leases)
	s.work = newWorkload(config, s.lease, s.operator, s.fleet)
	return s, nil
}

// ensurePool returns the pool's settings. It creates the pool if it does not exist.
func (s *simulation) ensurePool(ctx context.Context) (operators.Pool, error) {
	p, err := s.operator.Pools.Get(ctx, s.config.Pool)
	if !operators.HasStatus(err, http.StatusNotFound) {
		return p, err
	}
	settings := operators.PoolSettings{Capacity: s.config.Capacity}
	if s.config.Lease > 0 { // if it is 0, the server's default applies
		settings.LeaseMS = new(s.config.Lease.Milliseconds())
	}
	put, err := s.operator.Pools.Put(ctx, s.config.Pool, settings)
	return put.Pool, err
}

func (s *simulation) run(ctx context.Context) (Summary, error) {
	fleetCtx, stopFleet := context.WithCancel(ctx)
	defer stopFleet()
	s.started = time.Now()
	s.handoffsBefore = s.operator.fetchHandoffHistogram(ctx, s.config.Pool)
	ended := make(chan struct{})
	begin := func() {
		defer close(ended)
		s.fleet.Run(fleetCtx)
	}
	if s.config.Introduce {
		go begin()
		s.pollUntil(ctx, func() bool { return s.fleet.Stats().Introduced >= int64(s.config.Devices) })
		s.wait(ctx, s.config.RestTime)
	}
	if err := s.work.queueTasks(ctx); err != nil {
		return Summary{}, fmt.Errorf("simulation: %w", err)
	}
	s.started = s.work.queued
	s.wait(ctx, time.Until(s.started))
	s.config.OnBegan()
	if !s.config.Introduce {
		go begin()
	}
	s.waitForTasks(ctx)
	s.waitForOutcomes(ctx)
	s.config.OnEnded()
	s.measureTimes(ctx)
	stopFleet()
	<-ended
	err := s.compareAllTasks(ctx)
	s.fillSummary()
	return s.summary, err
}

func (*simulation) wait(ctx context.Context, duration time.Duration) {
	select {
	case <-time.After(duration):
	case <-ctx.Done():
	}
}

// pollUntil calls isReached every pollInterval and writes the progress, until isReached returns true. It returns false if
// ctx ends first.
func (s *simulation) pollUntil(ctx context.Context, isReached func() bool) bool {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		done := isReached()
		s.showProgress()
		if done {
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// waitForTasks polls until every task has ended, the timeout is over or ctx ends.
func (s *simulation) waitForTasks(ctx context.Context) {
	if !s.config.Endless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.config.Timeout)
		defer cancel()
	}
	if s.pollUntil(ctx, func() bool { s.readTaskStates(ctx); return !s.isFilling() && s.work.isFinished() }) {
		s.summary.Makespan = time.Since(s.started)
	}
}

// readTaskStates reads the state of the tasks. If the dispatcher does not answer, as in a test of faults, the next poll tries
// again.
func (s *simulation) readTaskStates(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s.work.refreshCounts(ctx)
	if s.work.waitingTasks() > 0 {
		s.summary.TasksWaited = time.Since(s.started)
		s.summary.InsideWhileTasksWaited = s.external.Stats().InsideTime
	}
	if s.config.Endless {
		s.updateCapacity(ctx)
		s.compareOldestBatch(ctx)
	}
	if s.isFilling() && s.work.waitingTasks() <= int64(s.config.Devices/2) {
		s.work.err = cmp.Or(s.work.queueTasks(ctx), s.work.err)
	}
}

func (s *simulation) isFilling() bool {
	select {
	case <-s.config.FillUntil:
		return s.config.Endless
	default:
		return s.config.Endless || s.config.FillUntil != nil
	}
}

// compareOldestBatch compares the results of the oldest batch in the ledger with the journals of the devices, if all of
// its tasks have ended, and then drops the batch. It adds the differences and the longest wait to s.summary.
func (s *simulation) compareOldestBatch(ctx context.Context) {
	if len(s.work.batches) == 0 || !isBatchFinished(s.work.batches[0]) {
		return
	}
	b := s.work.batches[0]
	found, last, err := compareBatch(ctx, s.operator, s.fleet.results, *b)
	if err != nil {
		s.work.err = err
		return
	}
	s.summary.add(found)
	starts := slices.DeleteFunc(s.fleet.results.startsByTask(), func(start Start) bool { return start.Task > last })
	_, wait := longestDelays(starts, b.Created.Time, 0)
	s.summary.LongestWait = max(s.summary.LongestWait, wait)
	s.fleet.results.dropAcknowledgedResults(last)
	s.work.batches = s.work.batches[1:]
	s.work.droppedTasks += b.Total
}

// waitForOutcomes waits, for a limited time, until the devices have received an outcome for each result.
func (s *simulation) waitForOutcomes(ctx context.Context) {
	if s.config.Endless || !s.work.isFinished() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*s.config.ResendAfter+2*s.config.Period+callTimeout)
	defer cancel()
	s.pollUntil(ctx, func() bool { return s.fleet.Unacknowledged() == 0 })
}

// compareAllTasks compares every task with the devices' journals. If the run was interrupted, it does nothing. In an endless run,
// compareOldestBatch has already compared the tasks.
func (s *simulation) compareAllTasks(ctx context.Context) error {
	s.summary.Interrupted = ctx.Err() != nil
	if s.config.Endless || s.summary.Interrupted {
		return nil
	}
	for _, b := range s.work.batches {
		found, _, err := compareBatch(ctx, s.operator, s.fleet.results, *b)
		if err != nil {
			return fmt.Errorf("simulation: verifying batch %d: %w", b.ID, err)
		}
		s.summary.add(found)
	}
	return nil
}

func (s *simulation) fillSummary() {
	s.summary.Pool = s.config.Pool
	s.summary.Capacity = s.external.Capacity()
	s.summary.Devices = s.config.Devices
	s.summary.Tasks, s.summary.Ended = s.work.countTasks()
	s.summary.Bound = s.work.planned / time.Duration(max(s.summary.Capacity, 1))
	s.summary.Ideal = s.work.idealMakespan(s.summary.Capacity, s.config.RoundTrip, s.fleet.results.startsByTask())
	s.summary.Fleet = s.fleet.Stats()
	s.summary.External = s.external.Stats()
	s.summary.Breaches = s.external.countBreaches(s.config.Margin)
	s.summary.Unacknowledged = s.fleet.Unacknowledged()
}

// measureTimes computes the handoff times and the idle times of slots. The last acknowledgement is the end of the run, unless tasks
// ended without an acknowledgement.
func (s *simulation) measureTimes(ctx context.Context) {
	sum := &s.summary
	after := s.operator.fetchHandoffHistogram(ctx, s.config.Pool).observedSince(s.handoffsBefore)
	sum.Handoff = measureHandoff(s.external.Gaps(), s.fleet.results.findStart)
	sum.Handoff.Server = Quantiles{P50: after.quantile(0.50), P99: after.quantile(0.99)}
	if s.config.Endless || s.config.FillUntil != nil || sum.Makespan == 0 {
		return
	}
	if last := s.fleet.results.lastAckTime(); !s.work.hasTasksWithoutResult() && s.fleet.Unacknowledged() == 0 && last.After(s.started) {
		sum.Makespan = last.Sub(s.started)
	}
	capacity := s.external.Capacity()
	slotTime := float64(capacity) * float64(sum.Makespan)
	sum.SlotIdle.Start, sum.SlotIdle.End = s.external.idleAtStartAndEnd(s.started, s.started.Add(sum.Makespan))
	sum.SlotIdle.Between = time.Duration(slotTime) - s.external.Stats().InsideTime - sum.SlotIdle.Start - sum.SlotIdle.End
	sum.MaxDelay, sum.LongestWait = longestDelays(s.fleet.results.startsByTask(), s.started, s.work.planned/time.Duration(max(capacity, 1)))
}

package bench

import (
	"context"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// inProcessClient calls the handler of reports directly, in this process, just as a job queue calls its workers.
type inProcessClient struct {
	ctx        context.Context //nolint:containedctx // context of the whole run
	dispatcher *dispatcher.Dispatcher
}

func (c inProcessClient) report(device string, report devices.Report) (devices.Reply, error) {
	caller, err := c.dispatcher.Authenticate(c.ctx, devices.ID(device), fleetToken)
	if err != nil {
		return devices.Reply{}, err
	}
	return c.dispatcher.HandleReport(c.ctx, caller, report)
}

func (c inProcessClient) requestTask(device string) (task, token int64, err error) {
	reply, err := c.report(device, devices.Report{Accept: true})
	if reply.Task != nil {
		task, token = reply.Task.ID, reply.Task.Token
	}
	return task, token, err
}

func (c inProcessClient) finishTask(device string, task, token int64) error {
	_, err := c.report(device, devices.Report{Results: []devices.Result{{Task: task, Token: token, Status: devices.StatusSucceeded}}})
	return err
}

func (inProcessClient) Close() error { return nil }

// measureInProcess measures a dispatcher that runs in the process of the load, with the background passes of an app.
// Before the measurement, a replica creates the pool, the devices and the tasks. The table shows the dispatcher's
// processor time in the column load.
func measureInProcess(s *testbed, size scale) figures {
	s.startReplicas(1)
	s.createPool("p")
	known := s.registerDevices("d", 5*size.queuedTasks)
	s.queueBatches("p", known)
	s.stopServers()
	on := s.newDispatcher()
	l := load{devices: known, stepsPerDevice: 1, span: size.span}
	for range size.callers {
		l.clients = append(l.clients, inProcessClient{s.ctx, on})
	}
	return s.measureCPU(func() figures { return l.run(s, runCycle) })
}

// newDispatcher returns a dispatcher that uses the servers of this testbed, set up as an app sets it up.
func (s *testbed) newDispatcher() *dispatcher.Dispatcher {
	ledger, err := store.OpenPostgres(s.ctx, s.dsn, store.Options{})
	s.failOnError(err)
	s.t.Cleanup(func() { _ = ledger.Close() })
	options, err := redisconn.ParseURL(s.redis.URL())
	s.failOnError(err)
	conn := redisconn.Open(options)
	s.t.Cleanup(func() { _ = conn.Close() })
	d := dispatcher.New(dispatcher.Config{
		Store: ledger, Semaphore: slots.New(conn.Client), Limits: policies.NewLimits(limits.New(conn.Client)), Recent: seen.NewList(conn.Client),
		Parking: parked.New(conn.Client, conn.Database), LeaseMargin: 10 * time.Second, FleetTokens: []string{fleetToken},
		Marks: marks.NewHashes(conn.Client),
	})
	ledger.OnNews(d.Marks.FollowCommit)
	s.startPasses(d, ledger)
	return d
}

// startPasses starts those background passes of an app that concern reports. When it returns, each pass has run
// once.
func (s *testbed) startPasses(d *dispatcher.Dispatcher, ledger *store.Store) {
	ctx, cancel := context.WithCancel(s.ctx)
	var all sync.WaitGroup
	s.t.Cleanup(func() {
		cancel()
		all.Wait()
		_ = d.Waiters.Stop(context.Background())
	})
	for _, pass := range []struct {
		every time.Duration
		run   func(context.Context) error
	}{
		{400 * time.Millisecond, func(ctx context.Context) error { _, err := d.Upkeep.FollowChanges(ctx); return err }},
		{time.Second, d.Marks.FollowNews},
		{500 * time.Millisecond, d.Waiters.Filler.FillAllPools},
		{5 * time.Second, func(ctx context.Context) error { _, err := d.Upkeep.Reap(ctx); return err }},
		{30 * time.Second, func(ctx context.Context) error { _, err := d.Upkeep.Reconcile(ctx); return err }},
		{2 * time.Second, func(ctx context.Context) error { _, err := d.Upkeep.FoldCounts(ctx); return err }},
		{10 * time.Second, func(ctx context.Context) error { _, err := d.Policies.SettleAllReservations(ctx); return err }},
		{2 * time.Second, d.Upkeep.RefreshWindows},
		{time.Second, d.Seen.FlushRecent},
		{time.Second, d.Upkeep.CountIdleSlots},
		{500 * time.Millisecond, d.Seen.FlushReached},
		{10 * time.Second, d.Seen.Flush},
		{15 * time.Second, ledger.Warm},
	} {
		s.failOnError(pass.run(ctx))
		all.Go(func() {
			tick := time.NewTicker(pass.every)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					_ = pass.run(ctx) // if a run fails, the next run tries again, as in an app
				}
			}
		})
	}
}

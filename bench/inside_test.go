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

// inside calls the handler of reports, as the workers of a job queue are called in process.
type inside struct {
	ctx context.Context //nolint:containedctx // of the whole run
	on  *dispatcher.Dispatcher
}

func (c inside) report(device string, report devices.Report) (devices.Reply, error) {
	caller, err := c.on.Authenticate(c.ctx, devices.ID(device), fleetToken)
	if err != nil {
		return devices.Reply{}, err
	}
	return c.on.HandleReport(c.ctx, caller, report)
}

func (c inside) ask(device string) (task, token int64, err error) {
	reply, err := c.report(device, devices.Report{Accept: true})
	if reply.Task != nil {
		task, token = reply.Task.ID, reply.Task.Token
	}
	return task, token, err
}

func (c inside) end(device string, task, token int64) error {
	_, err := c.report(device, devices.Report{Results: []devices.Result{{Task: task, Token: token, Status: devices.StatusSucceeded}}})
	return err
}

func (inside) Close() error { return nil }

// inProcess has a replica set up what is there, and then the dispatcher in this process,
// with the passes that an app runs. The columns of the processes have it under load.
func inProcess(s *site, size scale) figures {
	s.serve(1)
	s.pool("p")
	known := s.known("d", 5*size.queued)
	s.queue("p", known)
	s.stop()
	on := s.dispatcher()
	l := load{devices: known, each: 1, span: size.span}
	for range size.callers {
		l.clients = append(l.clients, inside{s.ctx, on})
	}
	return s.measured(func() figures { return l.run(s, cycle) })
}

// dispatcher is one on this site's servers, set up as an app does.
func (s *site) dispatcher() *dispatcher.Dispatcher {
	ledger, err := store.OpenPostgres(s.ctx, s.dsn, store.Options{})
	s.must(err)
	s.t.Cleanup(func() { _ = ledger.Close() })
	options, err := redisconn.ParseURL(s.redis.URL())
	s.must(err)
	conn := redisconn.Open(options)
	s.t.Cleanup(func() { _ = conn.Close() })
	d := dispatcher.New(dispatcher.Config{
		Store: ledger, Semaphore: slots.New(conn.Client), Limits: policies.LimitsOf(limits.New(conn.Client)), Recent: seen.NewList(conn.Client),
		Parking: parked.New(conn.Client, conn.Database), LeaseMargin: 10 * time.Second, FleetTokens: []string{fleetToken},
		Marks: marks.NewHashes(conn.Client),
	})
	ledger.OnNews(d.Marks.Wrote)
	s.passes(d, ledger)
	return d
}

// passes are those of an app that concern reports. Each has run once when passes returns.
func (s *site) passes(d *dispatcher.Dispatcher, ledger *store.Store) {
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
		{400 * time.Millisecond, func(ctx context.Context) error { _, err := d.Upkeep.Follow(ctx); return err }},
		{time.Second, d.Marks.Follow},
		{500 * time.Millisecond, d.Waiters.Filler.FillAll},
		{5 * time.Second, func(ctx context.Context) error { _, err := d.Upkeep.Reap(ctx); return err }},
		{30 * time.Second, func(ctx context.Context) error { _, err := d.Upkeep.Reconcile(ctx); return err }},
		{2 * time.Second, func(ctx context.Context) error { _, err := d.Upkeep.Fold(ctx); return err }},
		{10 * time.Second, func(ctx context.Context) error { _, err := d.Policies.SettleAll(ctx); return err }},
		{2 * time.Second, d.Upkeep.RefreshWindows},
		{time.Second, d.Seen.FlushRecent},
		{time.Second, d.Upkeep.CountIdle},
		{500 * time.Millisecond, d.Seen.FlushReached},
		{10 * time.Second, d.Seen.Flush},
		{15 * time.Second, ledger.Warm},
	} {
		s.must(pass.run(ctx))
		all.Go(func() {
			tick := time.NewTicker(pass.every)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					_ = pass.run(ctx) // what fails is tried again, as in an app
				}
			}
		})
	}
}

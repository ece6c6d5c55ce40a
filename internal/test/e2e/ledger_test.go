package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// findOverGrants checks the grants that are in force at one moment. It returns a description of the problems: more
// grants than the capacity, more grants of callers than allowed, or two grants of one slot. findOverGrants returns ""
// if nothing is wrong.
func (x *experiment) findOverGrants(ctx context.Context) (found string, err error) {
	err = x.db.QueryRowContext(ctx, `
		SELECT coalesce(string_agg(found, ', '), '') FROM (
			SELECT format('%s grants in force on %s slots of pool %s, capacity %s; %s of callers, of which there may be %s',
				count(*), count(DISTINCT g.slot), p.name, p.capacity, count(*) FILTER (WHERE g.device LIKE '@%'), p.callers) AS found
			FROM grants g JOIN pools p ON p.name = g.pool GROUP BY p.name, p.capacity, p.callers
			HAVING count(*) > p.capacity OR count(*) FILTER (WHERE g.device LIKE '@%') > p.callers OR count(*) > count(DISTINCT g.slot)) AS pools`).Scan(&found)
	return found, err
}

// watchOverGrants checks the grants in force again and again until the fleet has ended, and delivers the first
// problem. If the ledger does not answer, it is asked again.
func (x *experiment) watchOverGrants(ctx context.Context) (found <-chan string) {
	first := make(chan string, 1)
	go func() {
		defer close(first)
		_ = poll(ctx, 2*ledgerPause, func() bool {
			wrong, err := x.findOverGrants(ctx)
			if err != nil || wrong == "" {
				return false
			}
			first <- wrong
			return true
		})
	}()
	return first
}

// auditLedger checks the tasks and attempts in the ledger after the fleet has ended. If interrupted is true, open tasks
// are no violation, because the interruption was already reported.
func (x *experiment) auditLedger(interrupted bool) {
	x.t.Helper()
	var open, twice int
	if err := x.db.QueryRowContext(x.t.Context(), `
		SELECT (SELECT count(*) FROM tasks WHERE state = 'pending'),
			(SELECT count(*) FROM (SELECT 1 FROM attempts WHERE ended_by = 'succeeded' GROUP BY task HAVING count(*) > 1) AS twice)`).Scan(&open, &twice); err != nil {
		x.addViolation("reading the ledger: %w", err)
	}
	if open > 0 && !interrupted || twice > 0 {
		x.addViolation("the ledger says: %d tasks did not end, %d succeeded twice", open, twice)
	}
}

// TestNothingExcusesALedgerWithoutItsKey tests the checks of this package with a ledger that lacks its unique key on
// pool and slot, while one replica uses an empty Redis. So the replicas grant a slot twice. The verdict must be a
// failure even if the machine stalled for an hour.
func TestNothingExcusesALedgerWithoutItsKey(t *testing.T) {
	t.Parallel()
	v := &verdict{}
	x := newExperiment(t, v)
	x.shrink()
	x.fleet.Devices, x.fleet.Capacity, x.fleet.Tasks = 24, 6, 24
	x.fleet.LongShare, x.fleet.Faults = 0, simulator.Faults{}           // no long tasks and no silent devices, so that the test need not wait for them
	x.settings = append(x.settings, "DISPATCHER_RECONCILE_INTERVAL=5s") // long enough that neither Redis learns the other's grants
	x.deploy()
	empty := servers.StartRedis(t)
	_, err := x.db.ExecContext(t.Context(), `ALTER TABLE grants DROP CONSTRAINT grants_pool_slot_key`)
	must.Succeed(t, err)
	x.run(fault{"two masters over a ledger without its key", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
		defer cancel()
		x.redisLink.PointTo(empty.Addr)
		defer x.redisLink.PointTo(x.redis.Addr)
		err := poll(ctx, ledgerPause, func() bool {
			found, err := x.findOverGrants(ctx)
			return err == nil && found != ""
		})
		return errors.Join(err, pause(ctx, x.fleet.Lease/2))
	}})
	t.Logf("found: %v", v.findings())
	if v.stalled = time.Hour; v.outcomeAfter(1, false) != failed {
		t.Errorf("it is %s", v.outcomeAfter(1, false))
	}
	if !v.hasViolation("grants in force") {
		t.Errorf("want what the ledger said, not only: %v", v.findings())
	}
}

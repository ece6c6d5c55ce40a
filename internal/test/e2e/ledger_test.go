package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// crowded says what is wrong with the grants in force, of one moment: more than
// the capacity, more of callers than they may hold, or two of one slot. It is empty if nothing is.
func (x *experiment) crowded(ctx context.Context) (found string, err error) {
	err = x.db.QueryRowContext(ctx, `
		SELECT coalesce(string_agg(found, ', '), '') FROM (
			SELECT format('%s grants in force on %s slots of pool %s, capacity %s; %s of callers, of which there may be %s',
				count(*), count(DISTINCT g.slot), p.name, p.capacity, count(*) FILTER (WHERE g.device LIKE '@%'), p.callers) AS found
			FROM grants g JOIN pools p ON p.name = g.pool GROUP BY p.name, p.capacity, p.callers
			HAVING count(*) > p.capacity OR count(*) FILTER (WHERE g.device LIKE '@%') > p.callers OR count(*) > count(DISTINCT g.slot)) AS pools`).Scan(&found)
	return found, err
}

// witness reads the ledger until the fleet has ended, and returns what was wrong
// when it was first seen. A ledger that is down is asked again.
func (x *experiment) witness(ctx context.Context) (found <-chan string) {
	first := make(chan string, 1)
	go func() {
		defer close(first)
		_ = poll(ctx, 2*look, func() bool {
			wrong, err := x.crowded(ctx)
			if err != nil || wrong == "" {
				return false
			}
			first <- wrong
			return true
		})
	}()
	return first
}

// audit is what the ledger says of tasks and results once the fleet has ended. A
// fleet that was interrupted leaves tasks open; why it was has been said.
func (x *experiment) audit(interrupted bool) {
	x.t.Helper()
	var open, twice int
	if err := x.db.QueryRowContext(x.t.Context(), `
		SELECT (SELECT count(*) FROM tasks WHERE state = 'pending'),
			(SELECT count(*) FROM (SELECT 1 FROM attempts WHERE ended_by = 'succeeded' GROUP BY task HAVING count(*) > 1) AS twice)`).Scan(&open, &twice); err != nil {
		x.blame("reading the ledger: %w", err)
	}
	if open > 0 && !interrupted || twice > 0 {
		x.blame("the ledger says: %d tasks did not end, %d succeeded twice", open, twice)
	}
}

// TestNothingExcusesALedgerWithoutItsKey is the judge judged. Without its unique
// key on pool and slot, and with a Redis that knows nothing, the ledger grants a
// slot twice; the machine stood still for an hour, and that excuses nothing.
func TestNothingExcusesALedgerWithoutItsKey(t *testing.T) {
	t.Parallel()
	v := &verdict{}
	x := newExperiment(t, v)
	x.shrink()
	x.fleet.Devices, x.fleet.Capacity, x.fleet.Tasks = 24, 6, 24
	x.fleet.Long, x.fleet.Faults = 0, simulator.Faults{}                // nobody is waited for
	x.settings = append(x.settings, "DISPATCHER_RECONCILE_INTERVAL=5s") // in which neither Redis learns what the other gave
	x.deploy()
	empty := servers.Redis(t)
	if _, err := x.db.ExecContext(t.Context(), `ALTER TABLE grants DROP CONSTRAINT grants_pool_slot_key`); err != nil {
		t.Fatal(err)
	}
	x.run(fault{"two masters over a ledger without its key", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
		defer cancel()
		x.redisLink.Point(empty.Addr)
		defer x.redisLink.Point(x.redis.Addr)
		err := poll(ctx, look, func() bool {
			found, err := x.crowded(ctx)
			return err == nil && found != ""
		})
		return errors.Join(err, pause(ctx, x.fleet.Lease/2))
	}})
	t.Logf("found: %v", v.found())
	if v.stood = time.Hour; v.after(1, false) != failed {
		t.Errorf("it is %s", v.after(1, false))
	}
	if !v.says("grants in force") {
		t.Errorf("want what the ledger said, not only: %v", v.found())
	}
}

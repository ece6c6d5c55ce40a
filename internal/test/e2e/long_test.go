package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestLong runs an installation at its real pace for the time in E2E_LONG. It has 2,000 devices on both transports, two replicas with
// default settings, 60 slots, tasks of 20 s, and leases of 300 s (half of the run if that is less). After 3 % of the grants, the device
// becomes silent.
//
//	E2E_LONG=10m go test ./internal/test/e2e -run 'TestLong$' -v -timeout 60m
func TestLong(t *testing.T) {
	t.Parallel()
	length, err := time.ParseDuration(os.Getenv("E2E_LONG"))
	if err != nil {
		t.Skip("runs with E2E_LONG=10m in the environment")
	}
	const work, silent, capacity = 20 * time.Second, 0.03, 60
	lease := min(300*time.Second, length/2)
	hold := time.Duration((1-silent)*float64(work) + silent*float64(lease))
	var v verdict
	x := newExperiment(t, &v)
	x.settings, x.reapEvery = nil, 5*time.Second
	x.fleet = simulator.Config{
		OperatorToken: adminToken, FleetToken: fleetToken,
		Devices: 2000, Tasks: int(capacity * length / hold), Pool: pool, Capacity: capacity, Lease: lease,
		Via: simulator.ViaMixed, Work: work, Faults: simulator.Faults{Silent: silent, Duplicate: 0.01},
		Seed: 1, Timeout: length + 5*lease,
	}
	x.deploy()
	ctx, cancel := context.WithTimeout(t.Context(), x.fleet.Timeout+time.Minute)
	defer cancel()
	summary, err := simulator.Run(ctx, x.fleet, testWriter{t})
	must.Succeed(t, err)
	granted, err1 := x.grantCounts(ctx)
	conflicts, err2 := x.conflictCount(ctx)
	t.Logf("reports granted: %v (%v); conflicts: %v (%v)", granted, err1, conflicts, err2)
	x.checkPromises(summary)
	if err := v.findings(); err != nil {
		t.Error(err)
	}
}

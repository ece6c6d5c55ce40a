package examples_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// openLeaseStates returns the states of the open leases of the pool, separated by spaces.
func (s *devServer) openLeaseStates() string {
	s.Helper()
	var all []string
	for l, err := range s.admin.Leases.List(s.Context(), pool, operators.All{}) {
		must.Succeed(s, err)
		all = append(all, l.State)
	}
	return strings.Join(all, " ")
}

func (s *devServer) expectNoLease() {
	s.Helper()
	if left := s.openLeaseStates(); left != "" {
		s.Errorf("leases are left: %s", left)
	}
}

// runOnCallers runs a test with each example that leases a slot. The function start starts the example with work of
// length seconds. When the example has its slot, it prints a line with "slot 0".
func runOnCallers(t *testing.T, test func(s *devServer, start func(length string) *runningExample)) {
	t.Helper()
	t.Run("shell", func(t *testing.T) {
		t.Parallel()
		s := newDevServer(t)
		test(s, func(length string) *runningExample {
			return s.startExample("./lease.sh", pool, "sh", "-c", `echo "slot $DISPATCHER_SLOT with token $DISPATCHER_TOKEN"; exec sleep `+length)
		})
	})
	t.Run("go", func(t *testing.T) {
		t.Parallel()
		s := newDevServer(t)
		test(s, func(length string) *runningExample {
			return s.startExample(caller.Path(t), "-lease", "9s", "-work", length+"s", pool)
		})
	})
}

// TestCallersTakeTurns checks that the second caller waits in the queue until the first has ended.
func TestCallersTakeTurns(t *testing.T) {
	t.Parallel()
	runOnCallers(t, func(s *devServer, start func(length string) *runningExample) {
		first := start("600")
		first.waitForOutput("slot 0 with token 1")
		second := start("0")
		second.waitForOutput("waiting")
		if strings.Contains(second.String(), "slot 0") {
			s.Errorf("they share a slot: %s", second.String())
		}
		first.sendSignal(syscall.SIGTERM)
		_ = first.cmd.Wait()
		second.waitForOutput("slot 0 with token 2")
		second.expectExit(0)
		s.expectNoLease()
	})
}

// TestCallersRenew checks that callers renew their lease: the work takes longer than one lease.
func TestCallersRenew(t *testing.T) {
	t.Parallel()
	runOnCallers(t, func(s *devServer, start func(length string) *runningExample) {
		works := start("11")
		works.waitForOutput("slot 0")
		works.expectExit(0)
		s.expectNoLease()
	})
}

// TestCallersLeaveTheLine checks that a caller that is interrupted while it waits leaves the queue.
func TestCallersLeaveTheLine(t *testing.T) {
	t.Parallel()
	runOnCallers(t, func(s *devServer, start func(length string) *runningExample) {
		held, err := s.admin.Leases.Acquire(s.Context(), pool, operators.NewLease{}, 0)
		must.Succeed(s, err)
		waits := start("600")
		waits.waitForOutput("waiting")
		waits.sendSignal(syscall.SIGTERM)
		_ = waits.cmd.Wait()
		must.Succeed(s, s.admin.Leases.Release(s.Context(), pool, held.Lease, held.Token))
		s.expectNoLease()
	})
}

// TestCallersStopWhenTheirSlotIsTaken checks that a caller ends its work when an operator requests the
// slot. The response to the next renewal has this request.
func TestCallersStopWhenTheirSlotIsTaken(t *testing.T) {
	t.Parallel()
	runOnCallers(t, func(s *devServer, start func(length string) *runningExample) {
		works := start("600")
		works.waitForOutput("slot 0")
		_, err := s.admin.Pools.ReleaseSlot(s.Context(), pool, 0, operators.Release{Reason: "it hangs"})
		must.Succeed(s, err)
		works.expectExit(map[bool]int{true: 76, false: 1}[strings.HasSuffix(works.cmd.Path, ".sh")])
		s.expectNoLease()
	})
}

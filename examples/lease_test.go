package examples_test

import (
	"os/exec"
	"path/filepath"
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

// leaseExamples returns, by name, a function for each example that leases a slot. The function starts the
// example with work of length seconds. When the example has its slot, it prints a line with "slot 0".
func leaseExamples(t *testing.T) map[string]func(s *devServer, length string) *runningExample {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "caller")
	if out, err := exec.Command("go", "build", "-o", binary, "./caller").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return map[string]func(*devServer, string) *runningExample{
		"shell": func(s *devServer, length string) *runningExample {
			return s.startExample("./lease.sh", pool, "sh", "-c", `echo "slot $DISPATCHER_SLOT with token $DISPATCHER_TOKEN"; exec sleep `+length)
		},
		"go": func(s *devServer, length string) *runningExample {
			return s.startExample(binary, "-lease", "9s", "-work", length+"s", pool)
		},
	}
}

// TestCallersTakeTurns checks that the second caller waits in the queue until the first has ended.
func TestCallersTakeTurns(t *testing.T) {
	t.Parallel()
	for name, caller := range leaseExamples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDevServer(t)
			first := caller(s, "600")
			first.waitForOutput("slot 0 with token 1")
			second := caller(s, "0")
			second.waitForOutput("waiting")
			if strings.Contains(second.String(), "slot 0") {
				t.Errorf("they share a slot: %s", second.String())
			}
			first.sendSignal(syscall.SIGTERM)
			_ = first.cmd.Wait()
			second.waitForOutput("slot 0 with token 2")
			second.expectExit(0)
			s.expectNoLease()
		})
	}
}

// TestCallersRenew checks that callers renew their lease: the work takes longer than one lease.
func TestCallersRenew(t *testing.T) {
	t.Parallel()
	for name, caller := range leaseExamples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDevServer(t)
			works := caller(s, "11")
			works.waitForOutput("slot 0")
			works.expectExit(0)
			s.expectNoLease()
		})
	}
}

// TestCallersLeaveTheLine checks that a caller that is interrupted while it waits leaves the queue.
func TestCallersLeaveTheLine(t *testing.T) {
	t.Parallel()
	for name, caller := range leaseExamples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDevServer(t)
			held, err := s.admin.Leases.Acquire(t.Context(), pool, operators.NewLease{}, 0)
			must.Succeed(t, err)
			waits := caller(s, "600")
			waits.waitForOutput("waiting")
			waits.sendSignal(syscall.SIGTERM)
			_ = waits.cmd.Wait()
			must.Succeed(t, s.admin.Leases.Release(t.Context(), pool, held.Lease, held.Token))
			s.expectNoLease()
		})
	}
}

// TestCallersStopWhenTheirSlotIsTaken checks that a caller ends its work when an operator requests the
// slot. The response to the next renewal has this request.
func TestCallersStopWhenTheirSlotIsTaken(t *testing.T) {
	t.Parallel()
	for name, caller := range leaseExamples(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newDevServer(t)
			works := caller(s, "600")
			works.waitForOutput("slot 0")
			_, err := s.admin.Pools.ReleaseSlot(t.Context(), pool, 0, operators.Release{Reason: "it hangs"})
			must.Succeed(t, err)
			works.expectExit(map[string]int{"shell": 76, "go": 1}[name])
			s.expectNoLease()
		})
	}
}

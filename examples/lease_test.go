package examples_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// leases are the states of those that are open.
func (s *site) leases() string {
	s.Helper()
	var all []string
	for l, err := range s.admin.Leases.List(s.Context(), pool) {
		if err != nil {
			s.Fatal(err)
		}
		all = append(all, l.State)
	}
	return strings.Join(all, " ")
}

func (s *site) expectNoLease() {
	s.Helper()
	if left := s.leases(); left != "" {
		s.Errorf("leases are left: %s", left)
	}
}

// callers are the examples of a program that works in a slot. Each begins with the words "slot 0".
func callers(t *testing.T) map[string]func(s *site, length string) *example {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "caller")
	if out, err := exec.Command("go", "build", "-o", binary, "./caller").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return map[string]func(*site, string) *example{
		"shell": func(s *site, length string) *example {
			return s.start("./lease.sh", pool, "sh", "-c", `echo "slot $DISPATCHER_SLOT with token $DISPATCHER_TOKEN"; exec sleep `+length)
		},
		"go": func(s *site, length string) *example {
			return s.start(binary, "-lease", "9s", "-work", length+"s", pool)
		},
	}
}

// TestCallersTakeTurns: the second one waits in line until the first has ended.
func TestCallersTakeTurns(t *testing.T) {
	t.Parallel()
	for name, caller := range callers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			first := caller(s, "600")
			first.says("slot 0 with token 1")
			second := caller(s, "0")
			second.says("waiting")
			if strings.Contains(second.text(), "slot 0") {
				t.Errorf("they share a slot: %s", second.text())
			}
			first.signal(syscall.SIGTERM)
			_ = first.cmd.Wait()
			second.says("slot 0 with token 2")
			second.exits(0)
			s.expectNoLease()
		})
	}
}

// TestCallersRenew: one that did not would end its work with its lease.
func TestCallersRenew(t *testing.T) {
	t.Parallel()
	for name, caller := range callers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			works := caller(s, "11")
			works.says("slot 0")
			works.exits(0)
			s.expectNoLease()
		})
	}
}

// TestCallersLeaveTheLine when they are interrupted there.
func TestCallersLeaveTheLine(t *testing.T) {
	t.Parallel()
	for name, caller := range callers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			held, err := s.admin.Leases.Acquire(t.Context(), pool, operators.NewLease{}, 0)
			if err != nil {
				t.Fatal(err)
			}
			waits := caller(s, "600")
			waits.says("waiting")
			waits.signal(syscall.SIGTERM)
			_ = waits.cmd.Wait()
			if err := s.admin.Leases.Release(t.Context(), pool, held.Lease, held.Token); err != nil {
				t.Fatal(err)
			}
			s.expectNoLease()
		})
	}
}

// TestCallersStopWhenTheirSlotIsTaken: the next renewal says so.
func TestCallersStopWhenTheirSlotIsTaken(t *testing.T) {
	t.Parallel()
	for name, caller := range callers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			works := caller(s, "600")
			works.says("slot 0")
			if _, err := s.admin.Pools.ReleaseSlot(t.Context(), pool, 0, operators.Release{Reason: "it hangs"}); err != nil {
				t.Fatal(err)
			}
			works.exits(map[string]int{"shell": 76, "go": 1}[name])
			s.expectNoLease()
		})
	}
}

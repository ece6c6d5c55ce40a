package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/operators"
)

// visitArg is the first argument that makes this test program act as the command of a caller (see runVisit).
const visitArg = "visit-external-system"

// runVisit uses the external system for a while, in the slot that the environment variables name. SIGTERM ends the
// visit. If the argument is "stubborn", the command ignores SIGTERM, so only SIGKILL ends it.
func runVisit(args []string) (code int) {
	ctx := context.Background()
	if args[2] == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	} else {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM)
		defer stop()
	}
	stay, err1 := time.ParseDuration(args[1])
	task, err2 := strconv.ParseInt(os.Getenv("DISPATCHER_LEASE"), 10, 64)
	token, err3 := strconv.ParseInt(os.Getenv("DISPATCHER_TOKEN"), 10, 64)
	slot, err4 := strconv.Atoi(os.Getenv("DISPATCHER_SLOT"))
	leave, err5 := simulator.Enter(ctx, args[0], "callers/command", task, token, slot)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		if ctx.Err() != nil {
			return 0
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer leave()
	_ = pause(ctx, stay)
	return 0
}

// These are the prefixes of the names of holders.
const (
	commandPrefix = "command-"
	programPrefix = "program-"
)

// caller is a program that holds one slot after the other, each under a new holder name. If it came back under the
// same name after a crash, it would get its previous lease, perhaps while its previous command is still being
// ended.
type caller struct {
	*callers
	url      string
	name     string
	isCutOff bool // this caller keeps its slots for long, and its connection is cut from time to time

	leaseLength time.Duration // length of its leases
	leaseNumber int
	dice        *rand.Rand
}

func newDice(i int) *rand.Rand { return rand.New(rand.NewPCG(1, uint64(i))) }

func (c *caller) holderName(kind string) string {
	return fmt.Sprintf("%s%s-%d", kind, c.name, c.leaseNumber)
}

// workTime returns how long the work takes. Normal work needs a few renewals.
func (c *caller) workTime() time.Duration {
	if c.isCutOff {
		return cutOffWorkTime
	}
	return maxCallerLease/5 + time.Duration(c.dice.Int64N(int64(maxCallerLease)))
}

// runCommand runs a command in a slot with `dispatcher run`. It returns how the lease ended.
func (c *caller) runCommand(ctx context.Context) (ending string, err error) {
	manner := "obedient"
	if c.leaseNumber%2 == 0 {
		manner = "stubborn"
	}
	holder := c.holderName(commandPrefix)
	run := exec.CommandContext(ctx, program.Path(c.t), "run", "--pool", pool, "--holder", holder,
		"--lease", c.leaseLength.String(), "--grace", callerGrace.String(), "--wait", runLimit.String(),
		"--", os.Args[0], visitArg, c.fleet.ExternalAddr, c.workTime().String(), manner)
	run.Env = append(os.Environ(), "DISPATCHER_URL="+c.url, "DISPATCHER_TOKEN="+c.token)
	run.Stdout, run.Stderr = c.childStderr, c.childStderr
	// When ctx ends, the command gets SIGTERM, which a stubborn command ignores.
	run.Cancel, run.WaitDelay = func() error { return run.Process.Signal(syscall.SIGTERM) }, 2*callerGrace
	if err := run.Start(); err != nil {
		return neverGranted, err
	}
	c.setProcess(holder, run.Process)
	defer c.setProcess(holder, nil)
	_ = run.Wait()
	status, _ := run.ProcessState.Sys().(syscall.WaitStatus)
	switch code := status.ExitStatus(); {
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		return runKilled, nil
	case code == 0:
		return workDone, nil
	case code == 76:
		return leaseLost, nil
	case ctx.Err() != nil: // the caller was asked to end while it waited for a slot
		return neverGranted, nil
	default:
		return neverGranted, fmt.Errorf("%s: %s: %s", holder, run.ProcessState, c.lastOutput())
	}
}

// setProcess stores the process that works for a holder. nil means that the process has ended.
func (c *callers) setProcess(holder string, p *os.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes[holder] = p; p == nil {
		delete(c.processes, holder)
	}
}

// collectOutput reads the output of all processes until none of them has the pipe open.
func (c *callers) collectOutput() error {
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	c.childStderr = in
	go func() {
		defer close(c.stderrClosed)
		defer func() { _ = out.Close() }()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.mu.Lock()
			c.output.WriteString(lines.Text() + "\n")
			c.mu.Unlock()
		}
	}()
	return nil
}

func (c *callers) lastOutput() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := c.output.String()
	return said[max(0, len(said)-2000):]
}

// runProgram works in a slot with the Go client of the API. It returns how the lease ended.
func (c *caller) runProgram(ctx context.Context) (ending string, err error) {
	client, err := operators.New(operators.Config{URL: c.url, Token: c.token})
	if err != nil {
		return neverGranted, err
	}
	ask := operators.NewLease{Holder: c.holderName(programPrefix), LeaseMS: c.leaseLength.Milliseconds()}
	if c.leaseLength == c.fleet.Lease {
		ask.LeaseMS = 0 // means the pool's length
	}
	l, end, err := c.acquire(ctx, client.Leases, ask)
	if err != nil {
		return neverGranted, err
	}
	if ctx.Err() != nil {
		return neverGranted, c.release(client.Leases, l)
	}
	ending, err = c.work(ctx, client.Leases, l, end)
	if ending == workDone {
		err = errors.Join(err, c.release(client.Leases, l))
	}
	return ending, err
}

// acquire waits for a slot until ctx ends, even while the connection is cut. It returns the last answer of the server. If the slot was
// granted, end is the time at which its lease ends.
func (c *caller) acquire(ctx context.Context, leases operators.Leases, ask operators.NewLease) (last operators.Lease, end time.Time, err error) {
	for poll := time.Second; ctx.Err() == nil; poll = 2 * time.Second {
		asked := time.Now()
		l, err := leases.Acquire(context.WithoutCancel(ctx), pool, ask, poll)
		switch {
		case err == nil && l.State == operators.LeaseHeld:
			return l, asked.Add(time.Duration(l.HeldMS+l.LeaseMS) * time.Millisecond), nil
		case err == nil:
			last = l
		case !operators.IsTransient(err):
			return last, end, fmt.Errorf("acquiring as %s: %w", ask.Holder, err)
		}
		_ = pause(ctx, 100*time.Millisecond)
	}
	return last, end, nil
}

// work uses the external system as long as the lease can be renewed. It leaves before the lease ends.
func (c *caller) work(ctx context.Context, leases operators.Leases, l operators.Lease, end time.Time) (ending string, err error) {
	within, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	leave, err := simulator.Enter(within, c.fleet.ExternalAddr, "callers/program", l.Lease, l.Token, *l.Slot)
	if err != nil {
		if within.Err() != nil {
			return workDone, nil
		}
		return workDone, err
	}
	defer leave()
	ready := time.NewTimer(c.workTime())
	defer ready.Stop()
	for {
		select {
		case <-ready.C:
			return workDone, nil
		case <-ctx.Done():
			return workDone, nil
		case <-time.After(time.Until(end) - c.leaseLength*8/15): // at least a third of the caller's lease has passed
		}
		if time.Until(end) <= callerGrace {
			return leaseLost, nil
		}
		if end, err = c.renew(ctx, leases, l, end); err != nil {
			return leaseLost, err
		}
	}
}

func (c *caller) renew(ctx context.Context, leases operators.Leases, l operators.Lease, end time.Time) (time.Time, error) {
	within, cancel := context.WithDeadline(ctx, end.Add(-callerGrace))
	defer cancel()
	asked := time.Now()
	renewed, err := leases.Renew(within, pool, l.Lease, operators.LeaseRenewal{Token: l.Token})
	switch {
	case err == nil:
		return asked.Add(time.Duration(renewed.HeldMS+renewed.LeaseMS) * time.Millisecond), nil
	case within.Err() == nil && !operators.IsTransient(err):
		return end, fmt.Errorf("renewing lease %d of %s: %w", l.Lease, l.Holder, err)
	}
	_ = pause(within, 200*time.Millisecond)
	return end, nil
}

// release gives the slot, or the position in the queue, back. If the request cannot be sent, the lease or the
// position ends by itself.
func (c *caller) release(leases operators.Leases, l operators.Lease) error {
	if l.Lease == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxCallerLease)
	defer cancel()
	for {
		err := leases.Release(ctx, pool, l.Lease, l.Token)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case !operators.IsTransient(err):
			return fmt.Errorf("releasing lease %d of %s: %w", l.Lease, l.Holder, err)
		}
		_ = pause(ctx, 200*time.Millisecond)
	}
}

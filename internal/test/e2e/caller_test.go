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

// visiting makes this program the command of a caller.
const visiting = "visit-external-system"

// visit uses the external system for a while, in the slot that the environment names. SIGTERM
// ends it, unless it is stubborn: then only SIGKILL does.
func visit(args []string) (code int) {
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

// The names of holders begin so.
const (
	ofCommand = "command-"
	ofProgram = "program-"
)

// caller holds one slot after the other, as holders of names of their own: who comes again under its
// name after a crash has the lease of before, maybe beside a command that is being ended.
type caller struct {
	*callers
	url  string
	name string
	cut  bool // it stays for long, and is cut off from time to time

	length time.Duration // of its leases
	turn   int
	dice   *rand.Rand
}

func newDice(i int) *rand.Rand { return rand.New(rand.NewPCG(1, uint64(i))) }

func (c *caller) holder(kind string) string { return fmt.Sprintf("%s%s-%d", kind, c.name, c.turn) }

// stay is how long the work takes: some renewals.
func (c *caller) stay() time.Duration {
	if c.cut {
		return longStay
	}
	return leaseOfCallers/5 + time.Duration(c.dice.Int64N(int64(leaseOfCallers)))
}

// command runs a command in a slot, and says how that ended.
func (c *caller) command(ctx context.Context) (how string, err error) {
	manner := "obedient"
	if c.turn%2 == 0 {
		manner = "stubborn"
	}
	holder := c.holder(ofCommand)
	run := exec.CommandContext(ctx, program.Path(c.t), "run", "--pool", pool, "--holder", holder,
		"--lease", c.length.String(), "--grace", graceOfCallers.String(), "--wait", runLimit.String(),
		"--", os.Args[0], visiting, c.fleet.ExternalAddr, c.stay().String(), manner)
	run.Env = append(os.Environ(), "DISPATCHER_URL="+c.url, "DISPATCHER_TOKEN="+c.token)
	run.Stdout, run.Stderr = c.noise, c.noise
	// At the end it is asked, which a stubborn command does not hear.
	run.Cancel, run.WaitDelay = func() error { return run.Process.Signal(syscall.SIGTERM) }, 2*graceOfCallers
	if err := run.Start(); err != nil {
		return never, err
	}
	c.began(holder, run.Process)
	defer c.began(holder, nil)
	_ = run.Wait()
	status, _ := run.ProcessState.Sys().(syscall.WaitStatus)
	switch code := status.ExitStatus(); {
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		return taken, nil
	case code == 0:
		return done, nil
	case code == 76:
		return lost, nil
	case ctx.Err() != nil: // it was asked to end while it waited
		return never, nil
	default:
		return never, fmt.Errorf("%s: %s: %s", holder, run.ProcessState, c.lastWords())
	}
}

// began keeps the process of a holder; nil: it has ended.
func (c *callers) began(holder string, p *os.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs[holder] = p; p == nil {
		delete(c.runs, holder)
	}
}

// listen reads what the processes say, until there is none that could.
func (c *callers) listen() error {
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	c.noise = in
	go func() {
		defer close(c.silence)
		defer func() { _ = out.Close() }()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.mu.Lock()
			c.said.WriteString(lines.Text() + "\n")
			c.mu.Unlock()
		}
	}()
	return nil
}

// lastWords are the last that processes said.
func (c *callers) lastWords() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := c.said.String()
	return said[max(0, len(said)-2000):]
}

// program works in a slot by the client of the API, and says how that ended.
func (c *caller) program(ctx context.Context) (how string, err error) {
	client, err := operators.New(operators.Config{URL: c.url, Token: c.token})
	if err != nil {
		return never, err
	}
	ask := operators.NewLease{Holder: c.holder(ofProgram), LeaseMS: c.length.Milliseconds()}
	if c.length == c.fleet.Lease {
		ask.LeaseMS = 0 // the pool's
	}
	l, end, err := c.acquire(ctx, client.Leases, ask)
	if err != nil {
		return never, err
	}
	if ctx.Err() != nil {
		return never, c.release(client.Leases, l)
	}
	how, err = c.work(ctx, client.Leases, l, end)
	if how == done {
		err = errors.Join(err, c.release(client.Leases, l))
	}
	return how, err
}

// acquire waits in line until ctx ends, also when the wire is cut.
func (c *caller) acquire(ctx context.Context, leases operators.Leases, ask operators.NewLease) (last operators.Lease, end time.Time, err error) {
	for poll := time.Second; ctx.Err() == nil; poll = 2 * time.Second {
		asked := time.Now()
		l, err := leases.Acquire(context.WithoutCancel(ctx), pool, ask, poll)
		switch {
		case err == nil && l.State == operators.LeaseHeld:
			return l, asked.Add(time.Duration(l.HeldMS+l.LeaseMS) * time.Millisecond), nil
		case err == nil:
			last = l
		case !operators.Transient(err):
			return last, end, fmt.Errorf("acquiring as %s: %w", ask.Holder, err)
		}
		_ = pause(ctx, 100*time.Millisecond)
	}
	return last, end, nil
}

// work uses the external system as long as the lease is renewed. It has left before the lease ends.
func (c *caller) work(ctx context.Context, leases operators.Leases, l operators.Lease, end time.Time) (how string, err error) {
	within, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	leave, err := simulator.Enter(within, c.fleet.ExternalAddr, "callers/program", l.Lease, l.Token, *l.Slot)
	if err != nil {
		if within.Err() != nil {
			return done, nil
		}
		return done, err
	}
	defer leave()
	ready := time.NewTimer(c.stay())
	defer ready.Stop()
	for {
		select {
		case <-ready.C:
			return done, nil
		case <-ctx.Done():
			return done, nil
		case <-time.After(time.Until(end) - c.length*8/15): // a third of it has passed, or more
		}
		if time.Until(end) <= graceOfCallers {
			return lost, nil
		}
		if end, err = c.renew(ctx, leases, l, end); err != nil {
			return lost, err
		}
	}
}

// renew extends the lease, or tells when it ends.
func (c *caller) renew(ctx context.Context, leases operators.Leases, l operators.Lease, end time.Time) (time.Time, error) {
	within, cancel := context.WithDeadline(ctx, end.Add(-graceOfCallers))
	defer cancel()
	asked := time.Now()
	renewed, err := leases.Renew(within, pool, l.Lease, operators.LeaseRenewal{Token: l.Token})
	switch {
	case err == nil:
		return asked.Add(time.Duration(renewed.HeldMS+renewed.LeaseMS) * time.Millisecond), nil
	case within.Err() == nil && !operators.Transient(err):
		return end, fmt.Errorf("renewing lease %d of %s: %w", l.Lease, l.Holder, err)
	}
	_ = pause(within, 200*time.Millisecond)
	return end, nil
}

// release gives the slot or the position back; what cannot be told ends by itself.
func (c *caller) release(leases operators.Leases, l operators.Lease) error {
	if l.Lease == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaseOfCallers)
	defer cancel()
	for {
		err := leases.Release(ctx, pool, l.Lease, l.Token)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case !operators.Transient(err):
			return fmt.Errorf("releasing lease %d of %s: %w", l.Lease, l.Holder, err)
		}
		_ = pause(ctx, 200*time.Millisecond)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/child"
)

// Exit codes of `dispatcher run` if the command that it runs does not determine the exit code.
const (
	exitNotGranted = 75 // EX_TEMPFAIL of sysexits.h: the command was not started
	exitLeaseLost  = 76 // the slot could not be kept: the command was ended, or was not started at all
)

// statusError ends the program with this exit status and without an error message.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// shortestLease is the shortest lease that leaves time to renew it, and to end the command before
// the lease ends.
const shortestLease = 3 * time.Second

// runner contains the flags of `dispatcher run`. docs/callers.md has the promises of this command.
type runner struct {
	pool, holder       string
	wait, lease, grace time.Duration
	releaseSignals     func() // lets this command handle signals itself
}

// runCommand returns the command `dispatcher run`, which runs a command while it holds a slot. releaseSignals lets this command handle signals
// itself.
func runCommand(releaseSignals func()) *cobra.Command {
	o, r := &operatorFlags{}, &runner{releaseSignals: releaseSignals}
	command := o.groupCommand("run --pool POOL [flags] -- COMMAND [ARGS...]", "Run a command while it holds a slot of a pool")
	command.Long = `Run a command while it holds a slot of a pool, and give the slot back when the command has
ended. It waits in the queue with the devices and the other callers of the pool.

The environment of the command contains DISPATCHER_POOL, DISPATCHER_SLOT, DISPATCHER_TOKEN
(a fencing token) and DISPATCHER_LEASE. The lease is renewed while the command runs. If the
lease cannot be renewed, or if dispatcher run is killed, the command is ended before the
lease is over: with SIGTERM, and with SIGKILL after --grace. The other processes of its
process group end with it.

Signals are passed to the command. The exit status is the exit status of the command; 128 plus
the number of the signal that ended it; 127 if it was not found, 126 if it could not be started;
75 if no slot was granted within --wait; 76 if the command was ended because the lease was lost.

  dispatcher run --pool nightly --wait 30m -- ./backup.sh`
	command.Args = cobra.MinimumNArgs(1)
	flags := command.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&r.pool, "pool", "", "pool whose slot the command needs; required")
	flags.DurationVar(&r.wait, "wait", 10*time.Minute, "how long to wait in the queue; 0: do not wait")
	flags.DurationVar(&r.lease, "lease", time.Minute, "length of the lease; it is renewed after a third of this time")
	flags.DurationVar(&r.grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL; at most a third of --lease")
	flags.StringVar(&r.holder, "holder", "", "beginning of the name of the holder (default: run and the name of the machine); a number is appended")
	requireFlag(command, "pool")
	o.poolCommands().completeFlag(command, "pool")
	command.RunE = o.withSession(func(s *session, args []string) error { return r.runWithLease(s, args) })
	return command
}

// guardCommand returns the hidden command of the guard process. The guard, not leaseKeeper, ends a command
// that must not continue: child.Guard sends SIGTERM and then SIGKILL.
func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run-guard GRACE", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			grace, err := time.ParseDuration(args[0])
			if err != nil {
				return usageError{err}
			}
			return child.Guard(cmd.InOrStdin(), cmd.OutOrStdout(), grace)
		},
	}
}

// checkFlags returns an error if a flag is outside its limits. It shortens the default of --grace for a short lease.
func (r *runner) checkFlags(cmd *cobra.Command) error {
	if r.lease < shortestLease {
		return fmt.Errorf("--lease %s: want at least %s", r.lease, shortestLease)
	}
	if !cmd.Flags().Changed("grace") {
		r.grace = min(r.grace, r.lease/3)
	}
	if r.grace < 0 || r.grace > r.lease/3 {
		return fmt.Errorf("--grace %s: want at most a third of --lease, %s", r.grace, r.lease/3)
	}
	if r.wait < 0 {
		return fmt.Errorf("--wait %s: want 0 or more", r.wait)
	}
	return nil
}

// runWithLease acquires a lease, runs the command in args while the lease is held, and gives the slot back.
func (r *runner) runWithLease(connection *session, args []string) error {
	if err := r.checkFlags(connection.cmd); err != nil {
		return usageError{err}
	}
	r.holder = holderName(r.holder)
	k := &leaseKeeper{runner: r, leases: connection.Leases, console: connection.console}
	if err := k.waitForLease(connection.cmd.Context()); err != nil {
		return err
	}
	// From here on signals are passed to the command and do not end this program.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	if !signal.Ignored(syscall.SIGHUP) { // with nohup, this program and the command ignore SIGHUP
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	r.releaseSignals()
	ctx := context.WithoutCancel(connection.cmd.Context())
	defer k.release(ctx)
	if err := connection.cmd.Context().Err(); err != nil { // a signal arrived before releaseSignals was called
		return err
	}
	if k.remainingTime() <= r.grace { // the answer was so slow that too little of the lease is left
		connection.console.writeMessage("dispatcher: the lease ends in %s: the command was not started", k.remainingTime().Round(time.Millisecond))
		return statusError(exitLeaseLost)
	}
	c, err := r.startCommand(k, args)
	switch {
	case errors.Is(err, child.ErrDeadlinePassed):
		connection.console.writeMessage("dispatcher: the lease has ended: the command was not started")
		return statusError(exitLeaseLost)
	case err != nil:
		connection.console.writeMessage("dispatcher: %v", err)
		return statusError(child.StartErrorCode(err))
	}
	k.keepWhileRunning(ctx, c, signals)
	switch code := c.WaitExitCode(); {
	case k.lossReason != nil:
		connection.console.writeMessage("dispatcher: the command was ended, because its slot could not be kept: %v", k.lossReason)
		return statusError(exitLeaseLost)
	case code != 0:
		return statusError(code)
	}
	return nil
}

// startCommand starts the command in args with the environment and the remaining time of the lease that keeper holds.
func (r *runner) startCommand(keeper *leaseKeeper, args []string) (*child.Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	return child.Start(child.Config{
		Args: args, Env: keeper.commandEnvironment(os.Environ()), In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		GuardArgs: []string{self, "run-guard", r.grace.String()}, Deadline: keeper.held.UsableUntil,
	})
}

// holderName returns a name that begins with prefix and that no other process uses. The name is new for each process:
// after a crash, the process must not get the lease of the crashed one, because the guard may still be ending that
// command.
func holderName(prefix string) string {
	number := fmt.Sprintf("-%d-%04x", os.Getpid(), rand.IntN(1<<16))
	if prefix != "" {
		return prefix + number
	}
	host, _ := os.Hostname()
	return fmt.Sprintf("run-%.40s%s", regexp.MustCompile(`[^A-Za-z0-9._-]`).ReplaceAllString(host, "-"), number)
}

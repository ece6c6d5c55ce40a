package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// allPoolsChange changes all pools, or counts them if dryRun is true.
type allPoolsChange func(ctx context.Context, s *session, dryRun bool) (operators.PoolsChanged, error)

// withAllPools adds the flags --all and --yes to command, which changes one pool. With --all, the command calls change for all pools: first
// with dryRun, to count them, and then, if the user agrees, without it. verb and participle describe the change in messages, such as "Pause"
// and "paused".
func withAllPools(command *cobra.Command, pools noun, verb, participle string, change allPoolsChange) *cobra.Command {
	var all, yes bool
	one := command.RunE
	command.Use = command.Name() + " [POOL]"
	command.Args = cobra.MaximumNArgs(1)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case all == (len(args) == 1):
			return usageError{errors.New("give either a pool or --all")}
		case !all && cmd.Flags().Changed("stop-running"):
			return usageError{errors.New("--stop-running: only with --all")}
		case !all:
			return one(cmd, args)
		}
		return pools.withSession(func(s *session, _ []string) error { return s.changeAllPools(verb, participle, yes, change) })(cmd, args)
	}
	command.Flags().BoolVar(&all, "all", false, "all pools")
	addYesFlag(command, &yes)
	return command
}

// changeAllPools asks for confirmation unless isConfirmed is true, calls change for all pools, and writes the number of changed pools and, if
// devices were asked to stop, their number.
func (s *session) changeAllPools(verb, participle string, isConfirmed bool, change allPoolsChange) error {
	done, err := change(s.cmd.Context(), s, true)
	if err != nil {
		return err
	}
	if done.Pools+done.Stopping > 0 {
		question := verb + " " + countText(int64(done.Pools), "pool", "pools")
		if done.Stopping > 0 {
			question += ", and ask the devices that hold " + countText(int64(done.Stopping), "slot", "slots") + " to stop"
		}
		if err := s.console.confirm(isConfirmed, question); err != nil {
			return err
		}
		done, err = change(s.cmd.Context(), s, false)
	}
	if s.console.isJSON {
		return errors.Join(writeJSON(s.console.out, done, jsonIndent), err)
	}
	text := countText(int64(done.Pools), "pool", "pools") + " " + participle
	if done.Stopping > 0 {
		text += ", " + countText(int64(done.Stopping), "device", "devices") + " asked to stop"
	}
	_, failed := fmt.Fprintln(s.console.out, text)
	return errors.Join(failed, err)
}

// pausePool returns the command `pools pause`.
func pausePool(pools noun) *cobra.Command {
	command := pools.pauseCommand("Pause a pool or all pools: grant no more slots; running tasks continue")
	stopRunning := command.Flags().Bool("stop-running", false, "with --all: also ask the devices that hold a slot to stop; their tasks wait again")
	return withAllPools(command, pools, "Pause", "paused", func(ctx context.Context, s *session, dryRun bool) (operators.PoolsChanged, error) {
		reason, _ := command.Flags().GetString("reason")
		return s.Pools.PauseAll(ctx, operators.PauseAll{PauseReason: operators.PauseReason{Reason: reason}, StopRunning: *stopRunning}, dryRun)
	})
}

// resumePool returns the command `pools resume`.
func resumePool(pools noun) *cobra.Command {
	command := pools.requestCommand("resume", "End the pause of a pool, or of all pools that you paused", "POST", "/resume")
	return withAllPools(command, pools, "Resume", "resumed", func(ctx context.Context, s *session, dryRun bool) (operators.PoolsChanged, error) {
		return s.Pools.ResumeMine(ctx, dryRun)
	})
}

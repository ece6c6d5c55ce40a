package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// addAllPoolsFlags adds the flags --all and --yes to command, which changes one pool, and returns command. With --all,
// the command calls change, which changes all pools. verb and participle are words for the change in messages, such as
// "Pause" and "paused".
func addAllPoolsFlags(command *cobra.Command, pools commandFactory, verb, participle string, change func(s *session, dryRun bool) (operators.PoolsChanged, error)) *cobra.Command {
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
		return pools.withSession(func(s *session, _ []string) error {
			return bulkChange[operators.PoolsChanged]{
				send:     func(dryRun bool) (operators.PoolsChanged, error) { return change(s, dryRun) },
				question: func(counted operators.PoolsChanged) string { return poolsQuestion(verb, counted) },
				describe: describePools, done: participle,
			}.confirmAndChange(s.console, yes, false)
		})(cmd, args)
	}
	command.Flags().BoolVar(&all, "all", false, "all pools")
	addYesFlag(command, &yes)
	return command
}

// poolsQuestion returns the question before all pools are changed. It is empty if no pool and no device would be affected.
func poolsQuestion(verb string, counted operators.PoolsChanged) string {
	if counted.Pools+counted.Stopping == 0 {
		return ""
	}
	question := verb + " " + countText(int64(counted.Pools), "pool", "pools")
	if counted.Stopping > 0 {
		question += ", and ask the devices that hold " + countText(int64(counted.Stopping), "slot", "slots") + " to stop"
	}
	return question
}

// describePools returns the number of changed pools and, if devices were asked to stop, their number.
func describePools(changed operators.PoolsChanged, participle string) string {
	text := countText(int64(changed.Pools), "pool", "pools") + " " + participle
	if changed.Stopping > 0 {
		text += ", " + countText(int64(changed.Stopping), "device", "devices") + " asked to stop"
	}
	return text
}

func pausePoolCommand(pools commandFactory) *cobra.Command {
	command := pools.pauseCommand("Pause a pool or all pools: grant no more slots; dispatched tasks continue")
	stopRunning := command.Flags().Bool("stop-running", false, "with --all: also ask the devices that hold a slot to stop; their tasks wait again")
	return addAllPoolsFlags(command, pools, "Pause", "paused", func(s *session, dryRun bool) (operators.PoolsChanged, error) {
		reason, _ := command.Flags().GetString("reason")
		return s.Pools.PauseAll(s.cmd.Context(), operators.PauseAll{PauseReason: operators.PauseReason{Reason: reason}, StopRunning: *stopRunning}, dryRun)
	})
}

func resumePoolCommand(pools commandFactory) *cobra.Command {
	command := pools.requestCommand("resume", "End the pause of a pool, or of all pools that you paused", "POST", "/resume")
	return addAllPoolsFlags(command, pools, "Resume", "resumed", func(s *session, dryRun bool) (operators.PoolsChanged, error) {
		return s.Pools.ResumeMine(s.cmd.Context(), dryRun)
	})
}

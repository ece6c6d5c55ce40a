package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// withAllPools adds the flags --all and --yes to command, which changes one pool. With --all, the command calls change for all pools: first
// with dryRun, to count them, and then, if the user agrees, without it. verb and participle describe the change in messages, such as "Pause"
// and "paused".
func withAllPools(command *cobra.Command, pools noun, verb, participle string, change func(ctx context.Context, s *session, dryRun bool) (int, error)) *cobra.Command {
	var all, yes bool
	one := command.RunE
	command.Use = command.Name() + " [POOL]"
	command.Args = cobra.MaximumNArgs(1)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case all == (len(args) == 1):
			return usageError{errors.New("give either a pool or --all")}
		case !all:
			return one(cmd, args)
		}
		return pools.withSession(func(s *session, _ []string) error { return s.changeAllPools(verb, participle, yes, change) })(cmd, args)
	}
	command.Flags().BoolVar(&all, "all", false, "all pools")
	addYesFlag(command, &yes)
	return command
}

// changeAllPools asks for confirmation unless isConfirmed is true, calls change for all pools, and writes the number of changed pools.
func (s *session) changeAllPools(verb, participle string, isConfirmed bool, change func(ctx context.Context, s *session, dryRun bool) (int, error)) error {
	n, err := change(s.cmd.Context(), s, true)
	if err != nil {
		return err
	}
	if n > 0 {
		if err := s.console.confirm(isConfirmed, verb+" "+countText(int64(n), "pool", "pools")); err != nil {
			return err
		}
		n, err = change(s.cmd.Context(), s, false)
	}
	if s.console.isJSON {
		return errors.Join(writeJSON(s.console.out, map[string]int{"pools": n}, jsonIndent), err)
	}
	_, failed := fmt.Fprintln(s.console.out, countText(int64(n), "pool", "pools"), participle)
	return errors.Join(failed, err)
}

// pausePool returns the command `pools pause`.
func pausePool(pools noun) *cobra.Command {
	command := pools.pauseCommand("Pause a pool or all pools: grant no more slots; running tasks continue")
	return withAllPools(command, pools, "Pause", "paused", func(ctx context.Context, s *session, dryRun bool) (int, error) {
		reason, _ := command.Flags().GetString("reason")
		return s.Pools.PauseAll(ctx, reason, dryRun)
	})
}

// resumePool returns the command `pools resume`.
func resumePool(pools noun) *cobra.Command {
	command := pools.requestCommand("resume", "End the pause of a pool, or of all pools that you paused", "POST", "/resume")
	return withAllPools(command, pools, "Resume", "resumed", func(ctx context.Context, s *session, dryRun bool) (int, error) {
		return s.Pools.ResumeMine(ctx, dryRun)
	})
}

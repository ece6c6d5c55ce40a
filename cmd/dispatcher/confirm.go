package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
)

var errNotConfirmed = errors.New("not confirmed; nothing was changed")

// yesFlag adds --yes.
func yesFlag(command *cobra.Command, yes *bool) {
	command.Flags().BoolVarP(yes, "yes", "y", false, "do not ask")
}

// needed makes a flag one that must be given.
func needed(command *cobra.Command, flags ...string) *cobra.Command {
	run := command.RunE
	command.RunE = func(cmd *cobra.Command, args []string) error {
		for _, flag := range flags {
			if !cmd.Flags().Changed(flag) || cmd.Flags().Lookup(flag).Value.String() == "" {
				return usageError{fmt.Errorf("--%s is needed", flag)}
			}
		}
		return run(cmd, args)
	}
	return command
}

// confirm asks whether to do what cannot be undone. Where nobody can answer,
// --yes must have been said.
func (s *session) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	in := s.cmd.InOrStdin()
	if !terminal.Is(in) {
		return usageError{fmt.Errorf("%s: say --yes, for nobody can be asked: standard input is no terminal", question)}
	}
	_, _ = fmt.Fprintf(s.errs, "%s? [y/N] ", terminal.Safe(question))
	answer, _ := bufio.NewReader(in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errNotConfirmed
}

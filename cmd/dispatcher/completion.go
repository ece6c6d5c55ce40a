package main

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	completionPatience = 2 * time.Second
	completionMost     = 5000 // names
)

// complete offers a flag's values.
func complete(command *cobra.Command, flag string, values ...string) {
	// Fails only for a flag that does not exist, which a test would see.
	_ = command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag offers them for a flag.
func (n noun) completeFlag(command *cobra.Command, flag string) {
	_ = command.RegisterFlagCompletionFunc(flag, n.names(-1))
}

// names offers what the server has, for at most so many arguments (-1: any
// number). Errors are not shown: the shell is waiting.
func (n noun) names(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) (names []cobra.Completion, then cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		if c, err := n.connect(nil); err == nil {
			names = n.found(ctx, c, typed)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func (n noun) found(ctx context.Context, c *operators.Client, typed string) (names []cobra.Completion) {
	var narrowed url.Values
	if n.plural == "devices" { // there may be very many
		narrowed = operators.Query("prefix", typed)
	}
	entries, _ := c.List(ctx, operators.Path(n.plural), narrowed, completionMost)
	for text, err := range entries {
		if err != nil {
			return names
		}
		e, err := readEntry(text)
		if err != nil {
			return names
		}
		if value := e.text(n.key); strings.HasPrefix(value, typed) {
			names = append(names, cobra.CompletionWithDesc(value, e.text(n.about)))
		}
	}
	return names
}

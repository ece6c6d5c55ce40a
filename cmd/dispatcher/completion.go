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

// completeFlag offers names of the server for a flag.
func (o *operator) completeFlag(command *cobra.Command, flag, path, name, about string) {
	_ = command.RegisterFlagCompletionFunc(flag, o.names(path, name, about, -1))
}

// names offers what the server has, for at most so many arguments (-1: any
// number). Errors are not shown: the shell is waiting.
func (o *operator) names(path, name, about string, most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		c, err := o.connect(nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return found(ctx, c, path, name, about, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// narrowed asks for the devices that begin so: there may be very many.
func narrowed(path, typed string) url.Values {
	if path != operators.Path("devices") {
		return nil
	}
	return operators.Query("prefix", typed)
}

func found(ctx context.Context, c *operators.Client, path, name, about, typed string) (names []cobra.Completion) {
	entries, _ := c.List(ctx, path, narrowed(path, typed), completionMost)
	for text, err := range entries {
		if err != nil {
			return names
		}
		e, err := readEntry(text)
		if err != nil {
			return names
		}
		if value := e.text(name); strings.HasPrefix(value, typed) {
			names = append(names, cobra.CompletionWithDesc(value, e.text(about)))
		}
	}
	return names
}

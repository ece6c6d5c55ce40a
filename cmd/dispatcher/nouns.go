package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/operators"
)

// noun is what a group of commands is about.
type noun struct {
	*operator
	plural string // of the group, and in paths
	word   string // the argument in the help
	args   cobra.PositionalArgs

	key, about string // members: the argument, and what completion shows beside it; empty: not completed
}

func (o *operator) pools() noun {
	return noun{o, "pools", "POOL", cobra.ExactArgs(1), "name", "capacity"}
}

func (o *operator) batches() noun { return noun{o, "batches", "BATCH", numbered, "id", "name"} }

func (o *operator) tasks() noun { return noun{o, "tasks", "TASK", numbered, "", ""} }

func (o *operator) devices() noun {
	return noun{o, "devices", "DEVICE", cobra.ExactArgs(1), "id", "last_seen"}
}

func (o *operator) profiles() noun {
	return noun{o, "profiles", "PROFILE", cobra.ExactArgs(1), "name", "limits"}
}

func (o *operator) limitSets() noun {
	return noun{o, "limits", "SET", cobra.ExactArgs(1), "name", "limits"}
}

func (o *operator) tokens() noun { return noun{o, "tokens", "ID", numbered, "id", "name"} }

// on makes a command about one of them.
func (n noun) on(verb, short string, run func(s *session, name string) error) *cobra.Command {
	command := &cobra.Command{
		Use: verb + " " + n.word, Short: short, Args: n.args,
		RunE: n.with(func(s *session, args []string) error { return run(s, args[0]) }),
	}
	if n.key != "" {
		command.ValidArgsFunction = n.names(1)
	}
	return command
}

// call makes a command that sends a request without a body, to the path of one or
// to an end of it, and shows the answer without some members.
func (n noun) call(verb, short, method, end string, without ...string) *cobra.Command {
	return n.on(verb, short, func(s *session, name string) error {
		return s.act(operators.Request{Method: method, Path: operators.Path(n.plural, name) + end}, without...)
	})
}

// pause makes the command that pauses one of them.
func (n noun) pause(short string, without ...string) *cobra.Command {
	var reason string
	command := n.on("pause", short, func(s *session, name string) error {
		return s.act(operators.Request{Method: http.MethodPost, Path: operators.Path(n.plural, name, "pause"), Body: operators.PauseReason{Reason: reason}}, without...)
	})
	command.Flags().StringVar(&reason, "reason", "", "shown where somebody asks why nothing runs")
	return command
}

// field of a request.
type field struct {
	name  string
	value any
}

// given are the fields whose flags were given.
func given(flags *pflag.FlagSet, fields map[string]field) map[string]any {
	body := map[string]any{}
	for flag, f := range fields {
		if flags.Changed(flag) {
			body[f.name] = f.value
		}
	}
	return body
}

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

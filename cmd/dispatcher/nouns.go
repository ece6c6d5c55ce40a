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

// noun is the kind of object that a group of commands is about.
type noun struct {
	*operator
	plural string // name of the group, also in paths of the API
	word   string // name of the argument in the help
	args   cobra.PositionalArgs

	// key is the member that the argument contains. about is the member that completion shows next
	// to it. If key is empty, the argument is not completed.
	key, about string
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

// on returns a command about one object.
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

// call returns a command that sends a request without a body to the path of an object, extended by
// end. The command shows the answer except the members in without.
func (n noun) call(verb, short, method, end string, without ...string) *cobra.Command {
	return n.on(verb, short, func(s *session, name string) error {
		return s.act(operators.Request{Method: method, Path: operators.Path(n.plural, name) + end}, without...)
	})
}

// pause returns the command that pauses an object.
func (n noun) pause(short string, without ...string) *cobra.Command {
	var reason string
	command := n.on("pause", short, func(s *session, name string) error {
		return s.act(operators.Request{Method: http.MethodPost, Path: operators.Path(n.plural, name, "pause"), Body: operators.PauseReason{Reason: reason}}, without...)
	})
	command.Flags().StringVar(&reason, "reason", "", "shown where somebody asks why nothing runs")
	return command
}

// field is a field of a request.
type field struct {
	name  string
	value any
}

// given returns the fields whose flags were given, by their names in the API.
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
	completionMost     = 5000 // maximum number of completed names
)

// complete completes a flag with these values.
func complete(command *cobra.Command, flag string, values ...string) {
	// The registration fails only for a flag that does not exist, which a test would detect.
	_ = command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag completes a flag with the names of objects.
func (n noun) completeFlag(command *cobra.Command, flag string) {
	_ = command.RegisterFlagCompletionFunc(flag, n.names(-1))
}

// names returns a function that completes at most `most` arguments with the names of objects on the
// server. If most is -1, the number of arguments is not limited. Errors are not shown, because the
// shell waits for the completion.
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
	if n.plural == "devices" { // the server filters, because there may be very many devices
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

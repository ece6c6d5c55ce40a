package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// commandFactory creates the commands that work on one object of a kind, such as pool or batch.
type commandFactory struct {
	*operatorFlags
	plural  string // name of the group of commands, and of the objects in paths of the API
	argName string // name of the argument in the help
	args    cobra.PositionalArgs

	// The shell completes the argument with the values of the member idMember, and shows the member
	// descriptionMember next to each value. If idMember is empty, the argument is not completed.
	idMember, descriptionMember string
}

func (o *operatorFlags) poolCommands() commandFactory {
	return commandFactory{o, "pools", "POOL", cobra.ExactArgs(1), "name", "capacity"}
}

func (o *operatorFlags) batchCommands() commandFactory {
	return commandFactory{o, "batches", "BATCH", requireOneID, "id", "name"}
}

func (o *operatorFlags) taskCommands() commandFactory {
	return commandFactory{o, "tasks", "TASK", requireOneID, "", ""}
}

func (o *operatorFlags) deviceCommands() commandFactory {
	return commandFactory{o, "devices", "DEVICE", cobra.ExactArgs(1), "id", "last_seen"}
}

func (o *operatorFlags) profileCommands() commandFactory {
	return commandFactory{o, "profiles", "PROFILE", cobra.ExactArgs(1), "name", "limits"}
}

func (o *operatorFlags) limitSetCommands() commandFactory {
	return commandFactory{o, "limits", "SET", cobra.ExactArgs(1), "name", "limits"}
}

func (o *operatorFlags) tokenCommands() commandFactory {
	return commandFactory{o, "tokens", "ID", requireOneID, "id", "name"}
}

// objectCommand returns a command that works on one object, such as one pool. verb is the name of the command. shortHelp is
// the help of the command. run is called with the name or id of the object.
func (n commandFactory) objectCommand(verb, shortHelp string, run func(s *session, name string) error) *cobra.Command {
	command := &cobra.Command{
		Use: verb + " " + n.argName, Short: shortHelp, Args: n.args,
		RunE: n.withSession(func(s *session, args []string) error { return run(s, args[0]) }),
	}
	if n.idMember != "" {
		command.ValidArgsFunction = n.completeNames(1)
	}
	return command
}

// objectPartCommand returns a command that works on a part of an object, such as a slot of a pool. usageLine is the name of the
// command with its two arguments, and shortHelp is its help. run is called with the values of the arguments.
func (n commandFactory) objectPartCommand(usageLine, shortHelp string, run func(s *session, name, part string) error) *cobra.Command {
	return &cobra.Command{
		Use: usageLine, Short: shortHelp, Args: cobra.ExactArgs(2), ValidArgsFunction: n.completeNames(1),
		RunE: n.withSession(func(s *session, args []string) error { return run(s, args[0], args[1]) }),
	}
}

// requestCommand returns a command that sends a request without a body to the path of an object. verb is the name of
// the command. pathEnd is appended to the path. The command shows the answer except the members in omittedMembers. shortHelp is
// the help of the command.
func (n commandFactory) requestCommand(verb, shortHelp, method, pathEnd string, omittedMembers ...string) *cobra.Command {
	return n.objectCommand(verb, shortHelp, func(s *session, name string) error {
		return s.sendAndShow(operators.Request{Method: method, Path: operators.Path(n.plural, name) + pathEnd}, omittedMembers...)
	})
}

// pauseCommand returns the command that pauses an object, with the help shortHelp. The command shows the answer except the members in
// omittedMembers.
func (n commandFactory) pauseCommand(shortHelp string, omittedMembers ...string) *cobra.Command {
	var reason string
	command := n.objectCommand("pause", shortHelp, func(s *session, name string) error {
		return s.sendAndShow(operators.Request{Method: http.MethodPost, Path: operators.Path(n.plural, name, "pause"), Body: operators.PauseReason{Reason: reason}}, omittedMembers...)
	})
	command.Flags().StringVar(&reason, "reason", "", "reason of the pause; shown as the reason why tasks wait")
	return command
}

// setCommand returns the command `set` with the help shortHelp. The command changes those settings of an object for which the
// user gives flags. The caller adds the flags.
func (n commandFactory) setCommand(shortHelp string) *cobra.Command {
	return n.objectCommand("set", shortHelp, func(s *session, name string) error {
		body, err := changedSettingsBody(s.cmd)
		if err != nil {
			return err
		}
		return s.sendAndShow(operators.Request{Method: http.MethodPatch, Path: operators.Path(n.plural, name), Body: body})
	})
}

const (
	completionTimeout = 2 * time.Second
	maxCompletions    = 5000 // maximum number of completed names
)

// completeFlagValues makes the shell complete the flag with these values.
func completeFlagValues(command *cobra.Command, flagName string, values ...string) {
	// The registration fails only for a flag that does not exist, which a test would detect.
	_ = command.RegisterFlagCompletionFunc(flagName, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag makes the shell complete the flag with the names of the objects on the server.
func (n commandFactory) completeFlag(command *cobra.Command, flagName string) {
	_ = command.RegisterFlagCompletionFunc(flagName, n.completeNames(-1))
}

// completeNames returns a function with which the shell completes at most maxArgs arguments with the names of objects on
// the server. If maxArgs is -1, it completes every argument. Errors are not shown, because the user only pressed the
// completion key.
func (n commandFactory) completeNames(maxArgs int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) (names []cobra.Completion, directive cobra.ShellCompDirective) {
		if maxArgs >= 0 && len(args) >= maxArgs {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		if c, err := n.newClient(nil); err == nil {
			names = n.findNames(ctx, c, typed)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// findNames returns the names of the objects on the server that begin with prefix, the text that the user has typed.
func (n commandFactory) findNames(ctx context.Context, client *operators.Client, prefix string) (names []cobra.Completion) {
	var narrowed url.Values
	if n.plural == "devices" { // the server filters, because there may be very many devices
		narrowed = operators.Query("prefix", prefix)
	}
	entries, _ := client.List(ctx, operators.Path(n.plural), narrowed, maxCompletions)
	for text, err := range entries {
		if err != nil {
			return names
		}
		e, err := decodeObject(text)
		if err != nil {
			return names
		}
		if value := e.memberText(n.idMember); strings.HasPrefix(value, prefix) {
			names = append(names, cobra.CompletionWithDesc(value, e.memberText(n.descriptionMember)))
		}
	}
	return names
}

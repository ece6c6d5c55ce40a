// Command dispatcher grants the slots of an external system to the devices of a fleet. The commands about one kind of object,
// such as pools, are in the files whose names begin with the name of the kind. There are three exceptions: why.go has `pools why`
// and `batches why`, failures.go has `pools failures` and `batches failures`, and rules.go has `profiles`, `pools limited` and
// `pools usage`.
//
// main.go contains the code that all commands share. operator.go, nouns.go, listing.go and console.go contain the code that the
// commands of the operators' API share. fields.go makes requests from flags, and flags.go has the types of flags. A function
// such as createBatchCommand or showSlotsCommand returns the command with its name. The function in its RunE does the work.
//
// The settings of docs/configuration.md, which `make docs` writes, belong to `serve`. `run` has flags instead. The contract of the
// commands is in docs/protocol.md ("Program").
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/terminal"
)

// version, commit and date are set by the linker. date is the time of the commit.
var version, commit, date = "dev", "unknown", "unknown" //nolint:gochecknoglobals // set by the linker

// Exit codes of all commands. The command run has additional ones (run.go).
const (
	exitFailure = 1
	exitUsage   = 2
)

// The groups of commands in the help. The command `dispatcher run` is in groupOperate.
const (
	groupInstallation = "run"
	groupOperate      = "operate"
)

// usageError is a mistake on the command line or in the configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program with the command-line arguments args and returns its exit status.
func run(args []string, stdout, stderr io.Writer) (exitStatus int) {
	ctx, releaseSignals, stop := contextUntilSignal()
	defer stop()
	root := rootCommand(stdout, stderr, releaseSignals)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if status, ok := errors.AsType[statusError](err); ok {
		return int(status)
	}
	for _, line := range splitErrorLines(err) {
		_, _ = fmt.Fprintln(stderr, "dispatcher:", terminal.EscapeUnprintable(line))
	}
	if advice := adviceFor(err); advice != "" {
		_, _ = fmt.Fprintln(stderr, "  "+advice)
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailure
}

// splitErrorLines returns the lines in which err is printed. If err is an unwrapped result of errors.Join, each joined error
// gets its own line. Any other error becomes one line, even if its text contains line breaks.
func splitErrorLines(err error) (lines []string) {
	type several interface {
		error
		Unwrap() []error
	}
	joined, ok := errors.AsType[several](err)
	if !ok || errors.Join(joined.Unwrap()...).Error() != err.Error() {
		return []string{err.Error()}
	}
	for _, one := range joined.Unwrap() {
		lines = append(lines, splitErrorLines(one)...)
	}
	return lines
}

// contextUntilSignal returns a context that ends with the first SIGINT or SIGTERM. The second signal ends the process at once with status 1. A
// command that handles signals itself calls releaseSignals. The caller must call stop when the command has ended.
func contextUntilSignal() (ctx context.Context, releaseSignals, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	rescue.Async(func() error {
		<-signals
		cancel()
		<-signals
		os.Exit(exitFailure)
		return nil
	})
	releaseSignals = func() { signal.Stop(signals) }
	return ctx, releaseSignals, func() {
		releaseSignals()
		cancel()
	}
}

// rootCommand returns the command `dispatcher` with all its subcommands. A command that handles signals itself calls
// releaseSignals first.
func rootCommand(stdout, stderr io.Writer, releaseSignals func()) *cobra.Command {
	root := &cobra.Command{
		Use:           "dispatcher",
		Short:         "Grants the slots of an external system to the devices of a fleet, never more than there are",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 { // the flag may belong to the command that the user meant
			err = unknownCommandError(cmd, words)
		}
		return usageError{err}
	})
	root.AddGroup(&cobra.Group{ID: groupInstallation, Title: "Run:"}, &cobra.Group{ID: groupOperate, Title: "Operate:"})
	for _, command := range []*cobra.Command{devCommand(), serveCommand(), migrateCommand(), simulateCommand(), healthcheckCommand(), doctorCommand()} {
		command.GroupID = groupInstallation
		root.AddCommand(command)
	}
	root.AddCommand(poolsCommand(), batchesCommand(), tasksCommand(), devicesCommand(), profilesCommand(), limitsCommand(), tokensCommand(), leasesCommand(), eventsCommand(), findCommand(), runCommand(releaseSignals), guardCommand(), contextCommand(), versionCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	wrapArgErrors(root)
	return root
}

// wrapArgErrors makes wrong arguments usage errors, for the command and all commands below it.
func wrapArgErrors(command *cobra.Command) {
	for _, below := range command.Commands() {
		wrapArgErrors(below)
	}
	check := command.Args
	switch {
	case command.Name() == "help":
		check = checkHelpTopic
	case command.HasSubCommands():
		check = func(cmd *cobra.Command, args []string) error { return unknownCommandError(cmd, args) }
	case check == nil:
		check = cobra.NoArgs
	}
	command.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			err = cmd.ValidateRequiredFlags() // cobra validates flags and groups too, but later and not as usage errors
		}
		if err == nil {
			err = cmd.ValidateFlagGroups()
		}
		if err != nil {
			return usageError{err}
		}
		return nil
	}
}

// checkHelpTopic returns an error unless args is the name of a command.
func checkHelpTopic(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err != nil {
		return err
	}
	return unknownCommandError(found, rest)
}

// unknownCommandError returns the error for the unknown subcommand words[0] of parent, with suggestions of similar
// commands. If words is empty, it returns nil.
func unknownCommandError(parent *cobra.Command, words []string) error {
	if len(words) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", words[0], parent.CommandPath())
	parent.SuggestionsMinimumDistance = 2
	if similar := parent.SuggestionsFor(words[0]); len(similar) > 0 {
		return advisedError{err, "did you mean: " + parent.CommandPath() + " " + strings.Join(similar, ", ")}
	}
	return advisedError{err, "to list the commands: " + parent.CommandPath() + " --help"}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and the commit and its date",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\ncommit %s\ndate %s\n", version, commit, date)
			return err
		},
	}
}

// newLogger returns a logger that writes to stderr, because standard output is only for data. format and level are the settings log_format
// and log_level.
func newLogger(stderr io.Writer, format, level string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // level was validated with the configuration
	options := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(stderr, options))
	}
	return slog.New(slog.NewTextHandler(stderr, options))
}

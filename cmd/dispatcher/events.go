package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

func eventsCommand() *cobra.Command {
	o := &operatorFlags{}
	l := listSpec{path: operators.Path("events"), columns: slices.Concat(newColumns("ID", "AT", "KIND"), []tableColumn{{"ACTOR", eventActor}, {"ABOUT", eventSubject}}, newColumns("DETAIL"))}
	verbs := o.newListCommands(l, "List events, newest first", func(c *cobra.Command) {
		addEventFilters(o, c)
		c.Flags().String("order", "newest", "newest or oldest first")
		c.Flags().Var(new(timeFlag), "since", "only events at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z")
		c.Flags().Var(new(timeFlag), "until", "only events before this time")
		completeFlagValues(c, "order", "newest", "oldest")
	})
	command := o.groupCommand("events", "Read the audit log", append(verbs, watchEventsCommand(o), verifyEventsCommand(o))...)
	command.Flags().AddFlagSet(verbs[0].Flags()) // if one of the flags is given, events runs events list
	showHelp := command.RunE
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().NFlag() == 0 {
			return showHelp(cmd, args)
		}
		return verbs[0].RunE(cmd, args)
	}
	return command
}

// eventActor returns the kind and the name of the actor of an event.
func eventActor(event jsonObject) string {
	return event.memberText("actor_kind") + " " + event.memberText("actor")
}

// eventSubject returns the pool, the batch, the task and the device of an event.
func eventSubject(event jsonObject) string {
	var parts []string
	for _, name := range []string{"pool", "batch", "task", "device"} {
		if value := event.memberText(name); value != "" && value != "0" {
			parts = append(parts, name+" "+value)
		}
	}
	return strings.Join(parts, " ")
}

func addEventFilters(operator *operatorFlags, command *cobra.Command) {
	addFieldFlags(command, operators.EventFilter{})
	operator.poolCommands().completeFlag(command, "pool")
	operator.batchCommands().completeFlag(command, "batch")
	operator.deviceCommands().completeFlag(command, "device")
}

func watchEventsCommand(operator *operatorFlags) *cobra.Command {
	after := ""
	var filters *pflag.FlagSet
	command := &cobra.Command{
		Use: "watch", Short: "Show new events until Ctrl-C; no event is missed if the connection is lost", Args: cobra.NoArgs,
		RunE: operator.withSession(func(s *session, _ []string) error {
			live := operators.LivePosition{LastID: after}
			if after == "" {
				live.OnConnected = func() { s.console.writeMessage("Waiting for events.") }
			}
			err := s.Follow(s.cmd.Context(), operators.Path("events"), requestQuery(filters), live, eventWriter{s.console}.writeEvent)
			if s.cmd.Context().Err() != nil && errors.Is(err, s.cmd.Context().Err()) {
				return nil
			}
			return err
		}),
	}
	addEventFilters(operator, command)
	filters = copyFlags(command)
	command.Flags().StringVar(&after, "after", "", "also show the earlier events after this id; 0: all events")
	return command
}

// eventWriter writes events, each in one line.
type eventWriter struct{ console *console }

// writeEvent writes event as JSON, or as text whose columns start at the same place in every line.
func (l eventWriter) writeEvent(event json.RawMessage) error {
	if l.console.isJSON {
		return writeJSON(l.console.out, event, "")
	}
	e, err := decodeObject(event)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(l.console.out, terminal.EscapeUnprintable(fmt.Sprintf("%s  %-20s  %-20s  %s  %s", e.memberText("at"), e.memberText("kind"), eventActor(e), eventSubject(e), e.memberText("detail"))))
	return err
}

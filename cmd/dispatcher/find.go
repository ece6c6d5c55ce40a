package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

func findCommand() *cobra.Command {
	o := &operatorFlags{}
	command := o.groupCommand("find TEXT", "Find pools, batches, tasks and devices by name, number, tag or error")
	command.Long = `Find pools, batches, tasks and devices. TEXT is a part of the name of a pool, batch
or device, the number of a task or batch, a tag (site:berlin), or the beginning of an
error. An exact match is shown first. At most 10 hits of each kind are shown. A note
reports if there are more hits, and if only some of the entries were searched.`
	command.Args = cobra.ExactArgs(1)
	command.RunE = o.withSession(func(s *session, args []string) error {
		var found operators.Found
		return s.getAndShow(operators.Path("find"), operators.Query("q", args[0]), &found, func() error { return writeHits(s.console, found.Distinct(), strconv.Quote(args[0])) })
	})
	return command
}

// writeHits writes a table of the hits. For hits that are not in the table, it writes a message with the command that
// lists them. quotedText is the searched text in quotes.
func writeHits(output *console, found operators.Found, quotedText string) error {
	parts := []struct {
		operators.FoundPart

		matchedBy   string // what the text matched
		listCommand string // lists all hits of the part; empty for the exact hits, which are always complete
	}{
		{found.Exact, "exactly", ""},
		{found.Pools, "name", "pools list --name"},
		{found.Batches, "name", "batches list --name"},
		{found.Devices, "id", "devices list --part"},
		{found.Tagged, "tag", "devices list --tag"},
		{found.Failed, "error", "tasks list --error"}, // hits whose error begins with the text
	}
	table := terminal.NewTable(output.out, "KIND", "ID", "BY", "TEXT")
	for _, p := range parts {
		for _, hit := range p.Hits {
			table.AddRow(hit.Kind, hit.ID, p.matchedBy, hit.Text)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, p := range parts {
		if p.More {
			output.writeMessage("There are more hits by %s: dispatcher %s %s", p.matchedBy, p.listCommand, quotedText)
		}
		if p.Scanned > 0 {
			output.writeMessage("Only the first %d were searched by %s; to search all: dispatcher %s %s", p.Scanned, p.matchedBy, p.listCommand, quotedText)
		}
	}
	return nil
}

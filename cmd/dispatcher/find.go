package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// newFind returns the command `dispatcher find`, which searches pools, batches, tasks and devices.
func newFind() *cobra.Command {
	o := &operatorFlags{}
	command := o.newGroup("find TEXT", "Find pools, batches, tasks and devices by name, number, tag or error")
	command.Long = `Find pools, batches, tasks and devices. TEXT is a part of the name of a pool, batch
or device, the number of a task or batch, a tag (site:berlin), or the beginning of an
error. An exact match is shown first. At most 10 hits of each kind are shown. A note
reports if there are more hits, and if only some of the entries were searched.`
	command.Args = cobra.ExactArgs(1)
	command.RunE = o.withSession(func(s *session, args []string) error {
		var hits searchHits
		return s.getAndShow(operators.Path("find"), operators.Query("q", args[0]), &hits, func() error { return hits.writeTable(s.console, args[0]) })
	})
	return command
}

// foundPart is one part of the hits as it is shown.
type foundPart struct {
	operators.FoundPart

	// matchedBy names what the text matched. listCommand is the command that lists all hits of the part;
	// it is empty for the exact hits, which are always complete.
	matchedBy, listCommand string
}

// searchHits is the answer to a search.
type searchHits struct{ operators.Found }

// writeTable writes a table of the hits for the searched text, and notes the commands that list the hits that are not in the table.
func (h searchHits) writeTable(output *console, text string) error {
	f := h.Distinct()
	parts := []foundPart{
		{f.Exact, "exactly", ""},
		{f.Pools, "name", "pools list --name"},
		{f.Batches, "name", "batches list --name"},
		{f.Devices, "id", "devices list --part"},
		{f.Tagged, "tag", "devices list --tag"},
		{f.Failed, "error", "tasks list --error"}, // hits whose error begins with the text
	}
	quoted := strconv.Quote(text)
	t := terminal.NewTable(output.out, "KIND", "ID", "BY", "TEXT")
	for _, p := range parts {
		for _, hit := range p.Hits {
			t.AddRow(hit.Kind, hit.ID, p.matchedBy, hit.Text)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range parts {
		if p.More {
			output.note("There are more hits by %s: dispatcher %s %s", p.matchedBy, p.listCommand, quoted)
		}
		if p.Scanned > 0 {
			output.note("Only the first %d were searched by %s; to search all: dispatcher %s %s", p.Scanned, p.matchedBy, p.listCommand, quoted)
		}
	}
	return nil
}

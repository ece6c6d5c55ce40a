package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

func newFind() *cobra.Command {
	o := &operator{}
	command := o.group("find TEXT", "Find pools, batches, tasks and devices by what a text may mean")
	command.Long = `Find what a text may mean: a part of a pool, batch or device, the number of a
task or batch, a tag (site:berlin), or the beginning of an error. An exact name
comes first. At most 10 are shown of each; a note says where there
are more, and of how many it was looked at.`
	command.Args = cobra.ExactArgs(1)
	command.RunE = o.with(func(s *session, args []string) error {
		var found operators.Found
		return s.view(operators.Path("find"), operators.Query("q", args[0]), &found, func() error { return s.found(args[0], found) })
	})
	return command
}

// foundPart is a part for people.
type foundPart struct {
	operators.FoundPart

	how, all string // all: the command that lists all of them
}

func (s *session) found(text string, f operators.Found) error {
	f = f.Distinct()
	parts := []foundPart{
		{f.Exact, "exactly", ""},
		{f.Pools, "name", "pools list --name"},
		{f.Batches, "name", "batches list --name"},
		{f.Devices, "id", "devices list --part"},
		{f.Tagged, "tag", "devices list --tag"},
		{f.Failed, "error", "tasks list --error"}, // the beginning
	}
	quoted := strconv.Quote(text)
	t := terminal.NewTable(s.out, "KIND", "ID", "BY", "TEXT")
	for _, p := range parts {
		for _, hit := range p.Hits {
			t.Row(hit.Kind, hit.ID, p.how, hit.Text)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range parts {
		if p.More {
			s.note("There are more by %s: dispatcher %s %s", p.how, p.all, quoted)
		}
		if p.Looked > 0 {
			s.note("%d were looked at by %s, and there are others behind them: dispatcher %s %s", p.Looked, p.how, p.all, quoted)
		}
	}
	return nil
}

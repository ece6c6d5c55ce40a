package main

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// waitingTasks is the answer of the API, with parts as they came.
type waitingTasks struct {
	Total, Judged int64
	Sampled       bool
	Parts         []entry
}

// explainWaiting says what the tasks of a pool or a batch wait for or, with a code, lists
// those that wait for that.
func explainWaiting(n noun, short string) *cobra.Command {
	var code string
	var limit int
	command := n.on("why", short, func(s *session, name string) error {
		path := operators.Path(n.plural, name, "waiting")
		if code != "" || s.cmd.Flags().Changed("limit") {
			return s.listWaiting(path, code, limit)
		}
		var now waitingTasks
		return s.view(path, nil, &now, func() error { return s.waiting(now) })
	})
	command.Flags().StringVar(&code, "code", "", "list the tasks that wait for this, such as device_unseen")
	command.Flags().IntVar(&limit, "limit", 100, "most tasks to list; 0: all")
	return command
}

func (s *session) waiting(now waitingTasks) error {
	said := counted(now.Total, "task waits", "tasks wait")
	if now.Sampled {
		said += fmt.Sprintf("; the counts are those of a sample of %d", now.Judged)
	}
	if _, err := fmt.Fprintln(s.out, said); err != nil || len(now.Parts) == 0 {
		return err
	}
	t := terminal.NewTable(s.out, "COUNT", "WHY", "CODE", "UNTIL", "REMEDY")
	for _, p := range now.Parts {
		t.Row(p.text("count"), p.text("label"), p.text("code"), p.text("until"), p.text("remedy"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	s.note("To list the tasks of one: --code %s", now.Parts[0].text("code"))
	return nil
}

func (s *session) listWaiting(path, code string, limit int) error {
	if limit < 0 {
		return usageError{errors.New("--limit: must not be negative")}
	}
	filter := url.Values{}
	if code != "" {
		filter.Set("code", code)
	}
	entries, more := s.List(s.cmd.Context(), path+"/tasks", filter, limit)
	return s.listed(entries, more, []column{
		member("TASK", "id"), member("BATCH", "batch"), member("DEVICE", "device"), member("CODE", "code"), member("UNTIL", "until"), member("DETAIL", "detail"),
	})
}

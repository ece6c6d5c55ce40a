package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// waitingTasks is the response to GET /v1/pools/{pool}/waiting, and to the same path of a batch. Each
// part is a reason with the number of tasks that wait for it. The parts stay JSON objects.
type waitingTasks struct {
	Total, Judged int64
	Sampled       bool
	Parts         []jsonObject
	Recent        *operators.RecentAttempts `json:"recent_attempts"`
}

// explainWaitingCommand returns the command `why` of pools or batches. poolsOrBatches is this kind of object, and shortHelp is the
// help of the command. The command shows the reasons why the tasks of a pool or a batch wait. With --code, it lists the
// tasks that wait for one reason.
func explainWaitingCommand(poolsOrBatches commandFactory, shortHelp string) *cobra.Command {
	var code string
	var limit int
	command := poolsOrBatches.objectCommand("why", shortHelp, func(s *session, name string) error {
		path := operators.Path(poolsOrBatches.plural, name, "waiting")
		if code != "" || s.cmd.Flags().Changed("limit") {
			return s.writeList(listSpec{path: path + "/tasks", query: operators.Query("code", code), columns: newColumns("TASK=id", "BATCH", "DEVICE", "LAST SEEN", "CODE", "UNTIL", "DETAIL")}, limit)
		}
		var waiting waitingTasks
		return s.getAndShow(path, nil, &waiting, func() error { return waiting.writeReasons(s.console) })
	})
	command.Flags().StringVar(&code, "code", "", "list the tasks that wait for this reason, such as device_unseen")
	command.Flags().IntVar(&limit, "limit", 100, "maximum number of tasks to list; 0: all")
	return command
}

// writeReasons writes the number of waiting tasks and a table of the reasons.
func (w waitingTasks) writeReasons(output *console) error {
	text := countText(w.Total, "task waits", "tasks wait")
	if w.Sampled {
		text += fmt.Sprintf("; the counts are from a sample of %d tasks", w.Judged)
	}
	if failing := w.Recent.Text(); failing != "" {
		text += "\n" + terminal.EscapeUnprintable(failing)
	}
	if _, err := fmt.Fprintln(output.out, text); err != nil || len(w.Parts) == 0 {
		return err
	}
	count := tableColumn{"COUNT", func(part jsonObject) string {
		if w.Sampled {
			return "about " + part.memberText("count")
		}
		return part.memberText("count")
	}}
	if err := writeTable(output.out, w.Parts, append([]tableColumn{count}, newColumns("WHY=label", "CODE", "UNTIL", "REMEDY")...)); err != nil {
		return err
	}
	output.writeMessage("To list the tasks of one reason: --code %s", w.Parts[0].memberText("code"))
	return nil
}

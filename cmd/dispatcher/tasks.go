package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

func newTasks() *cobra.Command {
	o := &operator{}
	t := o.tasks()
	verbs := o.addList(list{
		path: operators.Path("tasks"), filters: taskFilters,
		columns: []column{
			member("ID", "id"), member("BATCH", "batch"), member("POOL", "pool"), member("DEVICE", "device"), member("STATE", "state"),
			member("ATTEMPTS", "attempts_counted"), member("FINISHED", "finished_at"), member("ERROR", "error"),
		},
	}, "List tasks by number", func(c *cobra.Command) { addTaskFilters(o, c) })
	verbs = append(verbs, getTask(t), explainTask(t),
		changeTasks(o, "cancel", "Cancel a task, or all that match; devices that run one are told to stop"),
		changeTasks(o, "retry", "Try a task again that ended without success, or all that match"))
	return o.group("tasks", "Find tasks, ask why they wait, cancel and retry them", verbs...)
}

func addTaskFilters(o *operator, command *cobra.Command) {
	flags := command.Flags()
	flags.String("device", "", "only of this device")
	flags.String("batch", "", "only of this batch")
	flags.String("pool", "", "only of this pool")
	flags.String("state", "", "only in this state: "+strings.Join(operators.TaskStates(), ", "))
	flags.String("kind", "", "only of this kind")
	flags.String("error", "", "only with this error; with * at its end: that begins so")
	o.devices().completeFlag(command, "device")
	o.batches().completeFlag(command, "batch")
	o.pools().completeFlag(command, "pool")
	complete(command, "state", operators.TaskStates()...)
}

// taskFilters are the flags of addTaskFilters in a query; all must match.
func taskFilters(flags *pflag.FlagSet) url.Values {
	return filtered(flags, "device", "batch", "pool", "state", "kind", "error")
}

func getTask(t noun) *cobra.Command {
	return t.on("get", "Show a task and its attempts", func(s *session, task string) error {
		text, err := s.Get(s.cmd.Context(), operators.Path("tasks", task), nil)
		if err != nil {
			return err
		}
		if err := s.show(text, "grant", "attempts"); err != nil || s.json {
			return err
		}
		return s.attempts(text)
	})
}

// attempts writes what is inside of a task: the grant in force, and those that
// ended.
func (s *session) attempts(task json.RawMessage) error {
	var detail struct {
		Grant    json.RawMessage
		Attempts []entry
	}
	if err := json.Unmarshal(task, &detail); err != nil {
		return err
	}
	if detail.Grant != nil {
		_, _ = fmt.Fprintln(s.out, "\nIt runs:")
		if err := terminal.Fields(s.out, detail.Grant); err != nil {
			return err
		}
	}
	if len(detail.Attempts) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(s.out, "\nAttempts that ended:")
	t := terminal.NewTable(s.out, "ATTEMPT", "TOKEN", "DEVICE", "SLOT", "GRANTED", "ENDED", "BY", "ERROR", "OUTPUT")
	for _, e := range detail.Attempts {
		t.Row(e.text("attempt"), e.text("token"), e.text("device"), e.text("slot"), e.text("granted_at"), e.text("ended_at"),
			e.text("ended_by"), e.text("error"), outputOf(e))
	}
	return t.Flush()
}

// outputOf is the output of an attempt, or why it is not there.
func outputOf(attempt entry) string {
	if attempt.text("output_dropped") != "" {
		return "dropped: too large"
	}
	return attempt.text("output")
}

func explainTask(t noun) *cobra.Command {
	return t.on("why", "Say why a task does not run, and what would change that", func(s *session, task string) error {
		text, err := s.Get(s.cmd.Context(), operators.Path("tasks", task, "why"), nil)
		if err != nil {
			return err
		}
		if s.json {
			return s.document(text)
		}
		return s.why(task, text)
	})
}

// why writes the reasons in their order, each with what would change it.
func (s *session) why(task string, text json.RawMessage) error {
	var answer struct {
		State   string
		Reasons []entry
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	lines := []string{"task " + task + " is " + answer.State}
	for i, r := range answer.Reasons {
		lines = append(lines, fmt.Sprintf("%d. %s (%s)", i+1, r.text("detail"), r.text("code")))
		for _, more := range []struct{ label, name string }{
			{"until", "until"}, {"position in line", "position"}, {"likely start", "estimated_start"}, {"what changes it", "remedy"},
		} {
			if value := r.text(more.name); value != "" {
				lines = append(lines, "   "+more.label+": "+value)
			}
		}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(s.out, terminal.Safe(line)); err != nil {
			return err
		}
	}
	return nil
}

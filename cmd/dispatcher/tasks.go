package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

func tasksCommand() *cobra.Command {
	o := &operatorFlags{}
	t := o.taskCommands()
	list := listSpec{path: operators.Path("tasks"), columns: slices.Concat(
		newColumns("ID", "BATCH", "POOL", "DEVICE", "STATE", "ATTEMPTS=attempts_counted", "FINISHED=finished_at"), []tableColumn{{"ERROR", taskErrorText}})}
	verbs := o.newListCommands(list, "List tasks by number", func(c *cobra.Command) {
		addTaskFilters(o, c)
		c.Flags().String("order", "oldest", "newest or oldest first, by number")
		completeFlagValues(c, "order", "newest", "oldest")
	})
	verbs = append(verbs, getTaskCommand(t), explainTaskCommand(t),
		changeTasksCommand(o, "cancel", "Cancel a task, or all matching tasks; devices of dispatched tasks are asked to stop"),
		changeTasksCommand(o, "retry", "Retry a task that ended without success, or all matching tasks"))
	return o.groupCommand("tasks", "Find tasks, ask why they wait, cancel and retry them", verbs...)
}

func addTaskFilters(operator *operatorFlags, command *cobra.Command) {
	addFieldFlags(command, operators.TaskFilter{})
	operator.deviceCommands().completeFlag(command, "device")
	operator.batchCommands().completeFlag(command, "batch")
	operator.poolCommands().completeFlag(command, "pool")
}

// taskErrorText returns the error of a task. If the task will be tried again, it returns the time of the next attempt and the
// last error.
func taskErrorText(task jsonObject) string {
	var t operators.Task
	if task.decode(&t) != nil || !t.WillBeTriedAgain() {
		return task.memberText("error")
	}
	if at := task.memberText("retry_at"); at != "" {
		return "next try " + at + ": " + t.LastErrorText()
	}
	return "next try with the next slot: " + t.LastErrorText()
}

func getTaskCommand(tasks commandFactory) *cobra.Command {
	return tasks.objectCommand("get", "Show a task and its attempts", func(s *session, task string) error {
		text, err := s.Get(s.cmd.Context(), operators.Path("tasks", task), nil)
		if err != nil {
			return err
		}
		if err := s.console.show(text, "grant", "attempts"); err != nil || s.console.isJSON {
			return err
		}
		var detail taskDetail
		if err := json.Unmarshal(text, &detail); err != nil {
			return err
		}
		return detail.writeAttempts(s.console.out)
	})
}

// taskDetail contains the current grant of a task, and the attempts that have ended.
type taskDetail struct {
	Grant    json.RawMessage
	Attempts []jsonObject
}

// writeAttempts writes the grant and a table of the attempts, if there are any.
func (d taskDetail) writeAttempts(out io.Writer) error {
	if d.Grant != nil {
		_, _ = fmt.Fprintln(out, "\nDispatched:")
		if err := terminal.WriteFields(out, d.Grant, nil); err != nil {
			return err
		}
	}
	if len(d.Attempts) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(out, "\nAttempts that ended:")
	return writeTable(out, d.Attempts, append(newColumns("ATTEMPT", "TOKEN", "DEVICE", "SLOT", "GRANTED=granted_at", "ENDED=ended_at", "BY=ended_by", "ERROR"), tableColumn{"OUTPUT", outputText}))
}

// outputText returns the output of an attempt as text, or a note if the output was dropped.
func outputText(attempt jsonObject) string {
	if attempt.memberText("output_dropped") != "" {
		return "dropped: too large"
	}
	return attempt.memberText("output")
}

// waitExplanation is the answer to GET /v1/tasks/{id}/why, or to the same request about a device. The reasons stay JSON
// objects.
type waitExplanation struct {
	Task    *int64 // answer about a device: the task that the device would get first; nil if no task waits for the device
	State   string // answer about a task: the state of the task
	Reasons []jsonObject
	Mark    *operators.Mark
}

// whyCommand returns the command `why` of tasks or devices with the help shortHelp. heading returns the first line of the output.
func (n commandFactory) whyCommand(shortHelp string, heading func(name string, found waitExplanation) string) *cobra.Command {
	return n.objectCommand("why", shortHelp, func(s *session, name string) error {
		var found waitExplanation
		return s.getAndShow(operators.Path(n.plural, name, "why"), nil, &found, func() error { return found.writeReasons(s.console.out, heading(name, found)) })
	})
}

func explainTaskCommand(tasks commandFactory) *cobra.Command {
	return tasks.whyCommand("Show why a task does not run, and what would change that", func(task string, found waitExplanation) string {
		return "task " + task + " is " + found.State
	})
}

// writeReasons writes heading and the reasons in their order, each with its remedy. The texts of detail
// and remedy are written by the server (package decision).
func (w waitExplanation) writeReasons(out io.Writer, heading string) error {
	lines := []string{heading}
	for i, r := range w.Reasons {
		lines = append(lines, fmt.Sprintf("%d. %s (%s)", i+1, r.memberText("detail"), r.memberText("code")))
		for _, more := range []struct{ label, name string }{
			{"until", "until"}, {"position in the queue", "position"}, {"estimated start", "estimated_start"}, {"remedy", "remedy"},
		} {
			if value := r.memberText(more.name); value != "" {
				lines = append(lines, "   "+more.label+": "+value)
			}
		}
	}
	if trouble := w.Mark.DescribeTrouble(); trouble != "" {
		lines = append(lines, trouble)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, terminal.EscapeUnprintable(line)); err != nil {
			return err
		}
	}
	return nil
}

// changeTasksCommand returns the command cancel or retry (verb). shortHelp is the help of the command. The command changes
// either one task, by its id, or all tasks that match the filters.
func changeTasksCommand(operator *operatorFlags, verb, shortHelp string) *cobra.Command {
	var yes, dryRun bool
	var filters *pflag.FlagSet
	command := &cobra.Command{
		Use: verb + " [TASK]", Short: shortHelp,
		RunE: operator.withSession(func(s *session, args []string) error {
			q := requestQuery(filters)
			switch {
			case len(args) == 1 && len(q) > 0:
				return usageError{errors.New("give either a task or filters")}
			case len(args) == 1:
				return s.sendAndShow(operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", args[0], verb)})
			case len(q) == 0:
				return usageError{errors.New("give a task, or at least one of --device, --batch, --pool, --state, --kind, --error, --since, --until")}
			}
			return s.changeMatchingTasks(verb, q, yes, dryRun)
		}),
	}
	command.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return requireOneID(cmd, args)
	}
	addTaskFilters(operator, command)
	filters = copyFlags(command)
	addYesFlag(command, &yes)
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count the tasks, change nothing")
	return command
}

// changeMatchingTasks cancels or retries all tasks that match the filter, after a count and a confirmation (see bulkChange). verb is "cancel"
// or "retry".
func (s *session) changeMatchingTasks(verb string, filter url.Values, isConfirmed, dryRun bool) error {
	words := map[string][3]string{"cancel": {"Cancel ", "cancelled", "would be cancelled"}, "retry": {"Retry ", "will be retried", "would be retried"}}[verb]
	return bulkChange[operators.Bulk]{
		send: func(dryRun bool) (operators.Bulk, error) { return s.repeatTaskChange(verb, filter, dryRun) },
		question: func(counted operators.Bulk) string {
			if counted.Tasks == 0 {
				return ""
			}
			return words[0] + countText(counted.Tasks, "task", "tasks")
		},
		describe: func(changed operators.Bulk, participle string) string {
			text := countText(changed.Tasks, "task", "tasks") + " " + participle
			if changed.AskedToStop > 0 {
				text += fmt.Sprintf(", %d dispatched: asked to stop", changed.AskedToStop)
			}
			return text
		},
		done: words[1], wouldBe: words[2],
	}.confirmAndChange(s.console, isConfirmed, dryRun)
}

// repeatTaskChange cancels or retries (verb) the tasks that match the filter. It repeats its request until no task matches. It returns the
// sums of the answers, even if it returns an error. If dryRun is true, one request only counts the tasks.
func (s *session) repeatTaskChange(verb string, filter url.Values, dryRun bool) (sum operators.Bulk, err error) {
	query := maps.Clone(filter)
	if dryRun {
		query.Set("dry_run", "true")
	}
	for {
		var done operators.Bulk
		err := s.Do(s.cmd.Context(), operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", verb), Query: query}, &done)
		sum.Tasks, sum.AskedToStop = sum.Tasks+done.Tasks, sum.AskedToStop+done.AskedToStop
		if err != nil || dryRun || !done.More {
			return sum, err
		}
	}
}

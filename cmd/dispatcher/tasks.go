package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// newTasks returns the command `tasks` with its subcommands.
func newTasks() *cobra.Command {
	o := &operatorFlags{}
	t := o.tasks()
	list := listSpec{path: operators.Path("tasks"), columns: slices.Concat(
		columns("ID", "BATCH", "POOL", "DEVICE", "STATE", "ATTEMPTS=attempts_counted", "FINISHED=finished_at"), []column{{"ERROR", taskError}})}
	verbs := o.newListCommands(list, "List tasks by number", func(c *cobra.Command) {
		addTaskFilters(o, c)
		c.Flags().String("order", "oldest", "newest or oldest first, by number")
		complete(c, "order", "newest", "oldest")
	})
	verbs = append(verbs, getTask(t), explainTask(t),
		changeTasks(o, "cancel", "Cancel a task, or all matching tasks; devices that run one of them are asked to stop"),
		changeTasks(o, "retry", "Retry a task that ended without success, or all matching tasks"))
	return o.newGroup("tasks", "Find tasks, ask why they wait, cancel and retry them", verbs...)
}

// addTaskFilters adds the flags by which a command filters tasks.
func addTaskFilters(operator *operatorFlags, command *cobra.Command) {
	flags := command.Flags()
	flags.String("device", "", "only tasks of this device")
	flags.String("batch", "", "only tasks of this batch")
	flags.String("pool", "", "only tasks of this pool")
	flags.String("state", "", "only tasks in this state: "+strings.Join(operators.TaskStates(), ", "))
	flags.String("kind", "", "only tasks of this kind")
	flags.Bool("retrying", false, "only tasks that will be tried again: they wait, and an attempt has failed")
	flags.String("error", "", "only tasks with this error; if it ends with *: whose error begins with the text before it")
	flags.Var(new(timeFlag), "since", "only tasks that ended at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z")
	flags.Var(new(timeFlag), "until", "only tasks that ended before this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z")
	operator.devices().completeFlag(command, "device")
	operator.batches().completeFlag(command, "batch")
	operator.pools().completeFlag(command, "pool")
	complete(command, "state", operators.TaskStates()...)
}

// taskError returns the error of a task. For a task that will be tried again it returns the time of the next try and the last error.
func taskError(e entry) string {
	var t operators.Task
	if e.decode(&t) != nil || !t.WillBeTriedAgain() {
		return e.text("error")
	}
	if at := e.text("retry_at"); at != "" {
		return "next try " + at + ": " + t.LastErrorText()
	}
	return "next try with the next slot: " + t.LastErrorText()
}

// getTask returns the command `tasks get`.
func getTask(tasks noun) *cobra.Command {
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
	Attempts []entry
}

// writeAttempts writes the grant and a table of the attempts, if there are any.
func (d taskDetail) writeAttempts(out io.Writer) error {
	if d.Grant != nil {
		_, _ = fmt.Fprintln(out, "\nIt runs:")
		if err := terminal.WriteFields(out, d.Grant); err != nil {
			return err
		}
	}
	if len(d.Attempts) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(out, "\nAttempts that ended:")
	return writeTable(out, d.Attempts, append(columns("ATTEMPT", "TOKEN", "DEVICE", "SLOT", "GRANTED=granted_at", "ENDED=ended_at", "BY=ended_by", "ERROR"), column{"OUTPUT", outputOf}))
}

// outputOf returns the output of an attempt as text, or a note if the output was dropped.
func outputOf(attempt entry) string {
	if attempt.text("output_dropped") != "" {
		return "dropped: too large"
	}
	return attempt.text("output")
}

// taskExplanation is the response to GET /v1/tasks/{id}/why. The reasons stay JSON objects.
type taskExplanation struct {
	State   string
	Reasons []entry
	Mark    *operators.Mark
}

// explainTask returns the command `tasks why`, which shows why a task does not run.
func explainTask(tasks noun) *cobra.Command {
	return tasks.objectCommand("why", "Show why a task does not run, and what would change that", func(s *session, task string) error {
		var answer taskExplanation
		return s.getAndShow(operators.Path("tasks", task, "why"), nil, &answer, func() error {
			return answer.writeReasons(s.console.out, "task "+task+" is "+answer.State)
		})
	})
}

// writeReasons writes heading and the reasons in their order, each with its remedy. The texts of detail
// and remedy are written by the server (package decision).
func (w taskExplanation) writeReasons(out io.Writer, heading string) error {
	lines := []string{heading}
	for i, r := range w.Reasons {
		lines = append(lines, fmt.Sprintf("%d. %s (%s)", i+1, r.text("detail"), r.text("code")))
		for _, more := range []struct{ label, name string }{
			{"until", "until"}, {"position in the queue", "position"}, {"estimated start", "estimated_start"}, {"remedy", "remedy"},
		} {
			if value := r.text(more.name); value != "" {
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

// changeTasks returns the command cancel or retry (verb) with the help short. The command changes one task by its id, or all tasks that
// match the filters.
func changeTasks(operator *operatorFlags, verb, short string) *cobra.Command {
	var yes, dryRun bool
	var filters *pflag.FlagSet
	command := &cobra.Command{
		Use: verb + " [TASK]", Short: short,
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
			return bulkChange{s.Client, s.console, verb, q}.run(s.cmd.Context(), yes, dryRun)
		}),
	}
	command.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return exactlyOneID(cmd, args)
	}
	addTaskFilters(operator, command)
	filters = copyFlags(command)
	addYesFlag(command, &yes)
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count the tasks, change nothing")
	return command
}

// bulkChange cancels or retries all tasks that match a filter.
type bulkChange struct {
	client  *operators.Client
	console *console
	verb    string // cancel or retry
	filter  url.Values
}

// run counts the tasks, asks for confirmation unless isConfirmed is true, and sends the request until no task matches. If dryRun is true,
// it only counts.
func (b bulkChange) run(ctx context.Context, isConfirmed, dryRun bool) error {
	count, err := b.send(ctx, true)
	if err != nil {
		return err
	}
	if dryRun {
		return b.writeResult(count, true)
	}
	if count.Tasks > 0 {
		if err := b.console.confirm(isConfirmed, map[string]string{"cancel": "Cancel ", "retry": "Retry "}[b.verb]+countText(count.Tasks, "task", "tasks")); err != nil {
			return err
		}
	}
	var all operators.Bulk
	for more := count.Tasks > 0; more; {
		done, err := b.send(ctx, false)
		if err != nil {
			return errors.Join(err, b.writeResult(all, false))
		}
		all.Tasks, all.AskedToStop, more = all.Tasks+done.Tasks, all.AskedToStop+done.AskedToStop, done.More
	}
	return b.writeResult(all, false)
}

// send sends one request that cancels or retries matching tasks, or only counts them if dryRun is true.
func (b bulkChange) send(ctx context.Context, dryRun bool) (result operators.Bulk, err error) {
	query := maps.Clone(b.filter)
	if dryRun {
		query.Set("dry_run", "true")
	}
	err = b.client.Do(ctx, operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", b.verb), Query: query}, &result)
	return result, err
}

// writeResult writes how many tasks were changed, or would be changed if dryRun is true.
func (b bulkChange) writeResult(result operators.Bulk, dryRun bool) error {
	if b.console.isJSON {
		return writeJSON(b.console.out, result, jsonIndent)
	}
	words := map[string]string{"cancel": "cancelled", "retry": "will be retried"}
	if dryRun {
		words = map[string]string{"cancel": "would be cancelled", "retry": "would be retried"}
	}
	text := countText(result.Tasks, "task", "tasks") + " " + words[b.verb]
	if result.AskedToStop > 0 {
		text += fmt.Sprintf(", %d run and were asked to stop", result.AskedToStop)
	}
	_, err := fmt.Fprintln(b.console.out, text)
	return err
}

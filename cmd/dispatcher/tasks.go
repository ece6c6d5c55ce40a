package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
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
	}, "List tasks by number", func(c *cobra.Command) {
		addTaskFilters(o, c)
		c.Flags().String("order", "oldest", "newest or oldest first, by number")
		complete(c, "order", "newest", "oldest")
	})
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
	return filtered(flags, "device", "batch", "pool", "state", "kind", "error", "order")
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

// whyTask is the answer of the API, with reasons as they came.
type whyTask struct {
	State   string
	Reasons []entry
	Mark    *operators.Mark
}

func explainTask(t noun) *cobra.Command {
	return t.on("why", "Say why a task does not run, and what would change that", func(s *session, task string) error {
		var answer whyTask
		return s.view(operators.Path("tasks", task, "why"), nil, &answer, func() error { return s.why(task, answer) })
	})
}

// why writes the reasons in their order, each with what would change it.
func (s *session) why(task string, answer whyTask) error {
	lines := []string{"task " + task + " is " + answer.State}
	for i, r := range answer.Reasons {
		lines = append(lines, fmt.Sprintf("%d. %s (%s)", i+1, r.text("detail"), r.text("code")))
		for _, more := range []struct{ label, name string }{
			{"until", "until"}, {"position in line", "position"}, {"likely start", "estimated_start"}, {"remedy", "remedy"},
		} {
			if value := r.text(more.name); value != "" {
				lines = append(lines, "   "+more.label+": "+value)
			}
		}
	}
	if trouble := answer.Mark.Trouble(); trouble != "" {
		lines = append(lines, trouble)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(s.out, terminal.Safe(line)); err != nil {
			return err
		}
	}
	return nil
}

// changeTasks makes cancel and retry: of one task by its number, or of all that
// match.
func changeTasks(o *operator, verb, short string) *cobra.Command {
	var yes, dryRun bool
	command := &cobra.Command{
		Use: verb + " [TASK]", Short: short,
		RunE: o.with(func(s *session, args []string) error {
			q := taskFilters(s.cmd.Flags())
			switch {
			case len(args) == 1 && len(q) > 0:
				return usageError{errors.New("either a task or filters")}
			case len(args) == 1:
				return s.act(operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", args[0], verb)})
			case len(q) == 0:
				return usageError{errors.New("a task, or at least one of --device, --batch, --pool, --state, --kind, --error")}
			}
			return s.bulk(verb, q, yes, dryRun)
		}),
	}
	command.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return numbered(cmd, args)
	}
	addTaskFilters(o, command)
	yesFlag(command, &yes)
	command.Flags().BoolVar(&dryRun, "dry-run", false, "count only")
	return command
}

// bulk counts, asks, and sends the request until nothing is left that matches.
func (s *session) bulk(verb string, q url.Values, yes, dryRun bool) error {
	count, err := s.bulkOnce(verb, q, true)
	if err != nil {
		return err
	}
	if dryRun {
		return s.sayBulk(verb, count, true)
	}
	if count.Tasks > 0 {
		if err := s.confirm(yes, map[string]string{"cancel": "Cancel ", "retry": "Retry "}[verb]+counted(count.Tasks, "task", "tasks")); err != nil {
			return err
		}
	}
	var all operators.Bulk
	for more := count.Tasks > 0; more; {
		done, err := s.bulkOnce(verb, q, false)
		if err != nil {
			return errors.Join(err, s.sayBulk(verb, all, false))
		}
		all.Tasks, all.Asked, more = all.Tasks+done.Tasks, all.Asked+done.Asked, done.More
	}
	return s.sayBulk(verb, all, false)
}

func (s *session) bulkOnce(verb string, q url.Values, dryRun bool) (result operators.Bulk, err error) {
	r := operators.Request{Method: http.MethodPost, Path: operators.Path("tasks", verb), Query: url.Values{}}
	maps.Copy(r.Query, q)
	if dryRun {
		r.Query.Set("dry_run", "true")
	}
	err = s.Do(s.cmd.Context(), r, &result)
	return result, err
}

func (s *session) sayBulk(verb string, r operators.Bulk, dryRun bool) error {
	if s.json {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return s.document(text)
	}
	words := map[string][2]string{"cancel": {"would be cancelled", "cancelled"}, "retry": {"would be tried again", "will be tried again"}}[verb]
	said := counted(r.Tasks, "task", "tasks") + " " + words[1]
	if dryRun {
		said = counted(r.Tasks, "task", "tasks") + " " + words[0]
	}
	if r.Asked > 0 {
		said += fmt.Sprintf(", %d run and were asked to stop", r.Asked)
	}
	_, err := fmt.Fprintln(s.out, said)
	return err
}

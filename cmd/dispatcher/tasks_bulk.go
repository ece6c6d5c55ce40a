package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

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

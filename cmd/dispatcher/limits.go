package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// limitsCommand returns the command `limits`, whose subcommands work on limit sets.
func limitsCommand() *cobra.Command {
	o := &operatorFlags{}
	l := o.limitSetCommands()
	list := listSpec{path: operators.Path("limits"), columns: newColumns("NAME", "LIMITS", "UPDATED=updated_at")}
	verbs := o.newListCommands(list, "List limit sets by name", nil)
	verbs = append(verbs, l.requestCommand("get", "Show a limit set", http.MethodGet, ""), putPoliciesCommand(l, "Create a limit set, or replace its policies", operators.LimitSetSettings{}),
		l.requestCommand("delete", "Delete a limit set", http.MethodDelete, ""),
		takeOrPeekCommand(l, "take", "Ask whether an action is allowed, and count it if it is"), takeOrPeekCommand(l, "peek", "Show what take would answer, and count nothing"),
		giveBackTakeCommand(l), showSetUsageCommand(l))
	return o.groupCommand("limits", "Limit the actions of programs that are not devices", verbs...)
}

// takeFlags contains the flags of the commands take, peek and return.
type takeFlags struct {
	facts []string
	operators.Take
}

func (t *takeFlags) addTo(flags *pflag.FlagSet) {
	addFacts(flags, &t.facts)
	flags.StringVar(&t.ID, "id", "", "id of the take; a take that is repeated within 10 minutes with the same id, facts and cost is counted once")
	flags.Int64Var(&t.Cost, "cost", 1, "how much the take uses of each maximum, 1 to 1000")
}

// addFacts adds the flag --fact, which collects name=value pairs in facts.
func addFacts(flags *pflag.FlagSet, facts *[]string) {
	flags.StringArrayVar(facts, "fact", nil, "fact that the policies count by, NAME=VALUE; may be repeated")
}

// readFacts parses the facts in pairs, each of the form name=value, and returns them by name.
func readFacts(pairs []string) (valueByName map[string]string, err error) {
	facts := make(map[string]string, len(pairs))
	for _, one := range pairs {
		name, value, ok := strings.Cut(one, "=")
		if _, isDuplicate := facts[name]; !ok || name == "" || isDuplicate {
			return nil, usageError{fmt.Errorf("--fact %s: must be NAME=VALUE, with each name once", one)}
		}
		facts[name] = value
	}
	return facts, nil
}

// newRequest returns the request that sends the take to a limit set. action (take, peek or return) is the last part of the path.
func (t *takeFlags) newRequest(limitSet, action string) (httpRequest operators.Request, err error) {
	if t.Cost == 0 { // in the API, 0 means the default
		return httpRequest, usageError{errors.New("--cost: must be between 1 and 1000")}
	}
	t.Facts, err = readFacts(t.facts)
	return operators.Request{Method: http.MethodPost, Path: operators.Path("limits", limitSet, action), Body: t.Take, Idempotent: t.ID != "" || action == "peek"}, err
}

// takeOrPeekCommand returns the command take or peek (verb). shortHelp is the help of the command. The command ends with an
// error if the take is refused. So a shell runs a command after && only if the take is allowed.
func takeOrPeekCommand(limitSets commandFactory, verb, shortHelp string) *cobra.Command {
	var t takeFlags
	command := limitSets.objectCommand(verb, shortHelp, func(s *session, set string) error {
		r, err := t.newRequest(set, verb)
		if err != nil {
			return err
		}
		var taken takeAnswer
		text, err := readAnswer(s.cmd.Context(), s.Client, r, &taken)
		if err != nil {
			return err
		}
		if err := taken.show(s.console, text); err != nil {
			return err
		}
		return taken.refusalError()
	})
	command.Long = shortHelp + ".\n\nExit status 1 if the action is not allowed: dispatcher limits " + verb + " SET --fact NAME=VALUE && do it"
	t.addTo(command.Flags())
	return command
}

// takeAnswer is the answer to a take or a peek.
type takeAnswer struct {
	operators.Taken

	Limits []jsonObject `json:"limits"` // hides the field Limits of Taken
}

// show writes the answer to a take. text is this answer as received. With --output json, show writes text unchanged. Otherwise it leaves
// out members without new information, and adds a table of the policies.
func (t takeAnswer) show(output *console, text json.RawMessage) error {
	without := []string{"limits", "cost", "retry_after_ms"} // limits is the table below; retry_after_ms is in the error
	if !t.Repeated {
		without = append(without, "repeated")
	}
	if !t.Unchecked {
		without = append(without, "unchecked")
	}
	if err := output.show(text, without...); err != nil || output.isJSON || len(t.Limits) == 0 {
		return err
	}
	return writeTable(output.out, t.Limits, append(newColumns("POLICY", "REMAINING", "MAX"), timeToResetColumn()))
}

// refusalError returns an error if the take is not allowed, else nil.
func (t takeAnswer) refusalError() error {
	switch {
	case t.Allowed:
		return nil
	case t.Unchecked:
		return errors.New("the take cannot be checked: Redis does not answer")
	}
	return fmt.Errorf("refused by policy %s; allowed in %s", t.RefusedBy, durationText(t.RetryAfterMS))
}

// durationText formats a duration of ms milliseconds. It returns "" for 0.
func durationText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return terminal.FormatDuration((time.Duration(ms) * time.Millisecond).Round(time.Second))
}

func giveBackTakeCommand(limitSets commandFactory) *cobra.Command {
	var t takeFlags
	command := limitSets.objectCommand("return", "Give back the unused part of a take, and show the total given back", func(s *session, set string) error {
		r, err := t.newRequest(set, "return")
		if err != nil {
			return err
		}
		r.Idempotent = true
		return s.sendAndShow(r)
	})
	t.addTo(command.Flags())
	return requireFlag(command, "id")
}

func showSetUsageCommand(limitSets commandFactory) *cobra.Command {
	var facts []string
	limit := 0
	command := limitSets.objectCommand("usage", "Show the usage of a subject, or without facts the subjects with the highest usage", func(s *session, set string) error {
		namedFacts, err := readFacts(facts)
		if err != nil {
			return err
		}
		query := url.Values{"limit": {strconv.Itoa(limit)}}
		for name, value := range namedFacts {
			query.Set("facts."+name, value)
		}
		return s.showUsage(operators.Path("limits", set, "usage"), query)
	})
	addFacts(command.Flags(), &facts)
	command.Flags().IntVar(&limit, "limit", 20, "number of subjects to show, highest usage first, 1 to 100")
	return command
}

package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/operators"
)

// limitsFlag is a JSON list of policies, which the server checks.
type limitsFlag struct {
	text string
	none bool
}

func (l *limitsFlag) add(flags *pflag.FlagSet) {
	flags.StringVar(&l.text, "limits", "", "how often tasks may start: a JSON list of policies, or @FILE with one")
}

// addChange adds also the flag that takes them away.
func (l *limitsFlag) addChange(command *cobra.Command) {
	l.add(command.Flags())
	command.Flags().BoolVar(&l.none, "no-limits", false, "no policies any more")
	command.MarkFlagsMutuallyExclusive("limits", "no-limits")
}

// say adds what was said to the body of a request.
func (l *limitsFlag) say(body map[string]any) error {
	policies, err := readJSON("limits", l.text)
	if policies != nil {
		body["limits"] = policies
	}
	if l.none {
		body["limits"] = nil
	}
	return err
}

func limitedOf(p noun) *cobra.Command {
	most := 0
	command := p.on("limited", "Show the subjects refused most by the policies of a pool, its batches and profiles", func(s *session, pool string) error {
		text, err := s.Get(s.cmd.Context(), operators.Path("pools", pool, "limited"), url.Values{"limit": {strconv.Itoa(most)}})
		if err != nil {
			return err
		}
		if s.json {
			return s.document(text)
		}
		var now operators.LimitedList
		if err := json.Unmarshal(text, &now); err != nil {
			return err
		}
		t := terminal.NewTable(s.out, "POLICY", "SUBJECT", "TIMES")
		for _, l := range now.Limited {
			t.Row(l.Policy, l.Subject, strconv.FormatInt(l.Times, 10))
		}
		return t.Flush()
	})
	command.Long = "Show the subjects refused most by the policies of a pool, its batches and profiles, in\nthis hour and the one before."
	command.Flags().IntVar(&most, "limit", 20, "so many, 1 to 200")
	return command
}

func newProfiles() *cobra.Command {
	o := &operator{}
	p := o.profiles()
	verbs := o.addList(list{path: operators.Path("profiles"), columns: []column{
		member("NAME", "name"), member("LIMITS", "limits"), member("UPDATED", "updated_at"),
	}}, "List profiles by name", nil)
	verbs = append(verbs, p.call("get", "Show a profile", http.MethodGet, ""), putProfile(p),
		p.call("delete", "Delete a profile that no device has", http.MethodDelete, ""))
	return o.group("profiles", "Limit how often devices start something, wherever they do", verbs...)
}

func putProfile(p noun) *cobra.Command {
	var policies limitsFlag
	command := p.on("put", "Create a profile, or replace its policies", func(s *session, profile string) error {
		body := map[string]any{}
		if err := policies.say(body); err != nil {
			return err
		}
		return s.act(operators.Request{Method: http.MethodPut, Path: operators.Path("profiles", profile), Body: body})
	})
	policies.addChange(command)
	command.MarkFlagsOneRequired("limits", "no-limits")
	return command
}

// readLimits reads the policies of a pool in a file.
func readLimits(p *poolSpec, n *yaml.Node) error {
	var list []any
	if err := n.Decode(&list); err != nil {
		return errors.New("a list of policies")
	}
	text, err := json.Marshal(list)
	if err != nil {
		return errors.New("a list of policies")
	}
	policies, err := policy.Parse(text)
	if err != nil {
		return err
	}
	p.fields["limits"] = append([]operators.Policy{}, policies...) // none is an empty list, as the server shows it
	return nil
}

// limitsNode writes policies into a file, as the server shows them: JSON is YAML.
func limitsNode(policies []operators.Policy) (*yaml.Node, error) {
	text, err := json.Marshal(policies)
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil || len(document.Content) == 0 {
		return nil, err
	}
	unquote(document.Content[0])
	return document.Content[0], nil
}

// unquote drops the quotes that JSON needs and YAML does not.
func unquote(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, inner := range n.Content {
		unquote(inner)
	}
}

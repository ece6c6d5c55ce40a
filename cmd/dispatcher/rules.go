package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/internal/windows"
	"github.com/fleetslots/dispatcher/operators"
)

// limitsFlag is a flag for a JSON list of policies. The server validates the policies.
type limitsFlag struct {
	text      string
	removeAll bool
}

// add adds the flag --limits to flags.
func (l *limitsFlag) add(flags *pflag.FlagSet) {
	flags.StringVar(&l.text, "limits", "", "policies that limit how often tasks may start: a JSON list, or @FILE with one")
}

// addChange adds the flag --limits, and the flag --no-limits, which removes all policies.
func (l *limitsFlag) addChange(command *cobra.Command) {
	l.add(command.Flags())
	command.Flags().BoolVar(&l.removeAll, "no-limits", false, "remove all policies")
	command.MarkFlagsMutuallyExclusive("limits", "no-limits")
}

// addTo adds the policies to the body of a request if a flag was given.
func (l *limitsFlag) addTo(body map[string]any) error {
	policies, err := readJSONFlag("limits", l.text)
	if policies != nil {
		body["limits"] = policies
	}
	if l.removeAll {
		body["limits"] = nil
	}
	return err
}

// showLimited returns the command `pools limited`, which shows the subjects that policies refused most.
func showLimited(pools noun) *cobra.Command {
	limit := 0
	command := pools.objectCommand("limited", "Show the subjects refused most by the policies of a pool, its batches and profiles", func(s *session, pool string) error {
		var limited operators.LimitedList
		return s.getAndShow(operators.Path("pools", pool, "limited"), url.Values{"limit": {strconv.Itoa(limit)}}, &limited, func() error {
			t := terminal.NewTable(s.console.out, "POLICY", "SUBJECT", "TIMES")
			for _, l := range limited.Limited {
				t.AddRow(l.Policy, l.Subject, strconv.FormatInt(l.Refusals, 10))
			}
			return t.Flush()
		})
	})
	command.Long = "Show the subjects refused most by the policies of a pool, its batches and profiles, in\nthe current and the previous hour."
	command.Flags().IntVar(&limit, "limit", 20, "number of subjects to show, 1 to 200")
	return command
}

// showPoolUsage returns the command `pools usage`.
func showPoolUsage(pools noun) *cobra.Command {
	limit, device := 0, ""
	command := pools.objectCommand("usage", "Show the usage of the policies of a pool", func(s *session, pool string) error {
		var usage policyUsage
		query := operators.Query("limit", strconv.Itoa(limit), "device", device)
		return s.getAndShow(operators.Path("pools", pool, "usage"), query, &usage, func() error { return usage.writeTable(s.console.out) })
	})
	command.Long = "Show the usage of the policies of a pool: the subjects with the highest usage, or the usage\nof one device, for the policies of the pool and of its profile that count by facts of the\ndevice and not by facts of its tasks."
	command.Flags().IntVar(&limit, "limit", 20, "number of subjects to show, highest usage first, 1 to 100")
	command.Flags().StringVar(&device, "device", "", "show the usage of this device")
	return command
}

// policyUsage is the usage of the policies of a pool or of a limit set, by subject.
type policyUsage operators.Usage

// writeTable writes the usage as a table, one row for each policy and subject.
func (u policyUsage) writeTable(out io.Writer) error {
	t := terminal.NewTable(out, "POLICY", "SUBJECT", "USED", "ALLOWED", "OF", "RESETS IN")
	for _, use := range append(u.Highest, u.Usage...) {
		t.AddRow(use.Policy, use.Subject, fmt.Sprintf("%d/%d", use.Used, use.Max), use.Allows, use.Owner, durationText(use.ResetMS))
	}
	return t.Flush()
}

// newProfiles returns the command `profiles` with its subcommands.
func newProfiles() *cobra.Command {
	o := &operatorFlags{}
	p := o.profiles()
	verbs := o.newListCommands(listSpec{path: operators.Path("profiles"), columns: []column{
		memberColumn("NAME", "name"), memberColumn("LIMITS", "limits"), memberColumn("UPDATED", "updated_at"),
	}}, "List profiles by name", nil)
	verbs = append(verbs, p.requestCommand("get", "Show a profile", http.MethodGet, ""), putPolicies(p, "Create a profile, or replace its policies"),
		p.requestCommand("delete", "Delete a profile that no device has", http.MethodDelete, ""))
	return o.newGroup("profiles", "Limit how often devices start tasks, in all pools together", verbs...)
}

// putPolicies returns the command `put` of profiles or limit sets, with the help short; owner is the kind of object. The command stores a
// list of policies under a name.
func putPolicies(owner noun, short string) *cobra.Command {
	var policies limitsFlag
	command := owner.objectCommand("put", short, func(s *session, name string) error {
		body := map[string]any{}
		if err := policies.addTo(body); err != nil {
			return err
		}
		return s.sendAndShow(operators.Request{Method: http.MethodPut, Path: operators.Path(owner.plural, name), Body: body})
	})
	policies.addChange(command)
	command.MarkFlagsOneRequired("limits", "no-limits")
	return command
}

// windowsFlag collects windows. A value such as "0 1 * * * 4h Asia/Shanghai" contains five cron
// fields, a duration and a time zone. The time zone may be left out.
type windowsFlag []windows.Window

// add adds the flag --window to flags.
func (w *windowsFlag) add(flags *pflag.FlagSet) {
	flags.Var(w, "window", `when tasks may start: "0 1 * * * 4h Asia/Shanghai" is cron, duration, time zone (UTC if left out); may be repeated`)
}

// String returns all windows as text, separated by commas.
func (w *windowsFlag) String() string {
	texts := make([]string, len(*w))
	for i, one := range *w {
		texts[i] = strings.TrimSpace(one.Cron + " " + one.Duration + " " + one.Timezone)
	}
	return strings.Join(texts, ", ")
}

// Type returns "window", the name of the value in the help of the flag.
func (w *windowsFlag) Type() string { return "window" }

// Set parses text as one window and appends the window to the value of the flag.
func (w *windowsFlag) Set(text string) error {
	window, err := windows.FromText(text)
	if err != nil {
		return err
	}
	if _, err := windows.Parse([]windows.Window{window}); err != nil {
		return fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "windows[0]."))
	}
	*w = append(*w, window)
	return nil
}

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// countFailures returns the command failures of pools or of batches (owner). It shows how many attempts failed, in groups of devices.
func countFailures(owner noun) *cobra.Command {
	var query operators.FailureQuery
	var since timeFlag
	command := owner.objectCommand("failures", "Show how many attempts failed, by tags and attributes of their devices", func(s *session, name string) error {
		query.Since = since.value
		var found operators.Failures
		return s.getAndShow(operators.Path(owner.plural, name, "failures"), query.Values(), &found, func() error { return writeFailures(s.console, found) })
	})
	command.Flags().StringSliceVar(&query.By, "by", nil, "at most two keys, such as tags.model,attributes.firmware")
	command.Flags().Var(&since, "since", "only attempts that ended at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z (default: the last hour)")
	return command
}

// writeFailures writes the totals, a table with a row for each group of devices, and the keys of groups.
func writeFailures(output *console, found operators.Failures) error {
	text := fmt.Sprintf("%d of %s failed", found.Failed, countText(int64(found.Ended), "attempt", "attempts"))
	if found.IsSample {
		text += " (of the latest; more ended in this time)"
	}
	if _, err := fmt.Fprintln(output.out, text); err != nil {
		return err
	}
	if len(found.By) > 0 {
		t := terminal.NewTable(output.out, slices.Concat([]string{"RATE", "FAILED", "ENDED"}, found.By)...)
		addRow := func(count operators.FailureCount, values ...string) {
			t.AddRow(slices.Concat([]string{fmt.Sprintf("%.0f %%", 100*count.Rate), fmt.Sprint(count.Failed), fmt.Sprint(count.Ended)}, values)...)
		}
		for _, group := range found.Groups {
			values := make([]string, len(group.Values))
			for i, value := range group.Values {
				if values[i] = "(without)"; value != nil {
					values[i] = *value
				}
			}
			addRow(group.FailureCount, values...)
		}
		if found.Rest != nil {
			addRow(*found.Rest, slices.Repeat([]string{"(others)"}, len(found.By))...)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(found.Keys) > 0 {
		output.note("Keys for --by: %s", strings.Join(found.Keys, ", "))
	}
	return nil
}

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// countFailuresCommand returns the command `failures` of pools or batches. poolsOrBatches is this kind of object. The command
// shows how many attempts failed, in groups of devices.
func countFailuresCommand(poolsOrBatches commandFactory) *cobra.Command {
	command := poolsOrBatches.objectCommand("failures", "Show how many attempts failed, by tags and attributes of their devices", func(s *session, name string) error {
		var found operators.Failures
		query := requestQuery(s.cmd.LocalNonPersistentFlags())
		return s.getAndShow(operators.Path(poolsOrBatches.plural, name, "failures"), query, &found, func() error { return writeFailures(s.console, found) })
	})
	addFieldFlags(command, operators.FailureQuery{})
	return command
}

// writeFailures writes the totals, a table with a row for each group of devices, and the keys of groups.
func writeFailures(output *console, found operators.Failures) error {
	text := fmt.Sprintf("%d of %s failed", found.Failed, countText(int64(found.Ended), "attempt", "attempts"))
	if found.IsSample {
		text += " (of the latest; more ended in this time)"
	}
	_, _ = fmt.Fprintln(output.out, text)
	if len(found.Keys) > 0 {
		defer output.writeMessage("Keys for --by: %s", strings.Join(found.Keys, ", "))
	}
	if len(found.By) == 0 {
		return nil
	}
	table := terminal.NewTable(output.out, slices.Concat([]string{"RATE", "FAILED", "ENDED"}, found.By)...)
	addRow := func(count operators.FailureCount, values []string) {
		table.AddRow(append(formatCells([]any{fmt.Sprintf("%.0f %%", 100*count.Rate), count.Failed, count.Ended}), values...)...)
	}
	for _, group := range found.Groups {
		values := make([]string, len(group.Values))
		for i, value := range group.Values {
			values[i] = textOrDefault(value, "(without)")
		}
		addRow(group.FailureCount, values)
	}
	if found.Rest != nil {
		addRow(*found.Rest, slices.Repeat([]string{"(others)"}, len(found.By)))
	}
	return table.Flush()
}

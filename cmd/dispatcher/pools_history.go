package main

import (
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

func showHistoryCommand(pools commandFactory) *cobra.Command {
	var since time.Duration
	var limit *int
	command := pools.objectCommand("history", "Show who held a pool's slots, since when, and how it ended", func(s *session, pool string) error {
		if since < 0 {
			return usageError{errors.New("--since must not be negative")}
		}
		flags := s.cmd.Flags()
		query := operators.Query("slot", flags.Lookup("slot").Value.String(), "order", flags.Lookup("order").Value.String())
		if since > 0 {
			query.Set("from", time.Now().Add(-since).UTC().Format(time.RFC3339Nano))
		}
		return s.writeList(listSpec{path: operators.Path("pools", pool, "history"), query: query, columns: slices.Concat(
			newColumns("SLOT", "DEVICE", "TASK", "BATCH", "TOKEN", "GRANTED=granted_at", "ENDED=ended_at"), []tableColumn{{"HOW", endReason}})}, *limit)
	})
	flags := command.Flags()
	flags.String("slot", "", "only this slot, or a range of slots: 17, 60-119")
	flags.String("order", "newest", "order by the end: newest or oldest first")
	flags.DurationVar(&since, "since", 0, "only entries that ended within this time, or have not ended: 24h")
	limit = addLimitFlag(command)
	completeFlagValues(command, "order", "newest", "oldest")
	return command
}

// endReason returns how a holding, an entry of the history of a pool, ended. If it has not ended, endReason returns "holds it".
func endReason(holding jsonObject) string {
	if how := holding.memberText("ended_by"); how != "" {
		return how
	}
	return "holds it"
}

func showSeriesCommand(pools commandFactory) *cobra.Command {
	command := pools.objectCommand("series", "Show how full a pool was in the last hour, day or week", func(s *session, pool string) error {
		return s.showTable(operators.Path("pools", pool, "series"), requestQuery(s.cmd.LocalNonPersistentFlags()),
			newColumns("UNTIL=at", "HELD", "LEAST=held_min", "MOST=held_max", "CAPACITY", "GRANTED", "ENDED", "LAPSED"), "points")
	})
	command.Flags().String("range", "1h", "1h, 24h or 7d")
	completeFlagValues(command, "range", "1h", "24h", "7d")
	return command
}

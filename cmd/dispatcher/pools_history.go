package main

import (
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/operators"
)

func showHistoryCommand(pools commandFactory) *cobra.Command {
	var since time.Duration
	var limit *int
	var filters *pflag.FlagSet
	command := pools.objectCommand("history", "Show who held a pool's slots, since when, and how it ended", func(s *session, pool string) error {
		if since < 0 {
			return usageError{errors.New("--since must not be negative")}
		}
		query := requestQuery(filters)
		if since > 0 {
			query.Set("from", time.Now().Add(-since).UTC().Format(time.RFC3339Nano))
		}
		return s.writeList(listSpec{path: operators.Path("pools", pool, "history"), query: query, columns: slices.Concat(
			newColumns("SLOT", "DEVICE", "TASK", "BATCH", "TOKEN", "GRANTED=granted_at", "ENDED=ended_at"), []tableColumn{{"HOW", endReason}})}, *limit)
	})
	filters = addFieldFlags(command, operators.HistoryFilter{})
	command.Flags().DurationVar(&since, "since", 0, "only entries that ended within this time, or have not ended: 24h")
	limit = addLimitFlag(command)
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
	addFieldFlags(command, operators.SeriesQuery{})
	return command
}

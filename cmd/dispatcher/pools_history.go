package main

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// showHistory returns the command `pools history`.
func showHistory(pools noun) *cobra.Command {
	since, limit := time.Duration(0), 0
	filters := func(flags *pflag.FlagSet) url.Values {
		q := flagQuery(flags, "slot", "order")
		if since > 0 {
			q.Set("from", time.Now().Add(-since).UTC().Format(time.RFC3339Nano))
		}
		return q
	}
	command := pools.objectCommand("history", "Show who held a pool's slots, since when, and how it ended", func(s *session, pool string) error {
		if limit < 0 || since < 0 {
			return usageError{errors.New("--limit and --since must not be negative")}
		}
		return s.writeList(listSpec{path: operators.Path("pools", pool, "history"), filters: filters, columns: []column{
			memberColumn("SLOT", "slot"), memberColumn("DEVICE", "device"), memberColumn("TASK", "task"), memberColumn("BATCH", "batch"), memberColumn("TOKEN", "token"),
			memberColumn("GRANTED", "granted_at"), memberColumn("ENDED", "ended_at"),
			{"HOW", endReason},
		}}, limit)
	})
	flags := command.Flags()
	flags.String("slot", "", "only this slot, or a range of slots: 17, 60-119")
	flags.String("order", "newest", "order by the end: newest or oldest first")
	flags.DurationVar(&since, "since", 0, "only entries that ended within this time, or have not ended: 24h")
	flags.IntVar(&limit, "limit", 100, "maximum number of entries to show; 0: all")
	complete(command, "order", "newest", "oldest")
	return command
}

// endReason returns how a holding, an entry of the history of a pool, ended. If it has not ended, endReason returns "holds it".
func endReason(holding entry) string {
	if how := holding.text("ended_by"); how != "" {
		return how
	}
	return "holds it"
}

// showSeries returns the command that shows the number of held slots of a pool over time.
func showSeries(pools noun) *cobra.Command {
	span := ""
	command := pools.objectCommand("series", "Show how full a pool was in the last hour, day or week", func(s *session, pool string) error {
		var found struct{ Points []entry }
		return s.getAndShow(operators.Path("pools", pool, "series"), operators.Query("range", span), &found, func() error {
			t := terminal.NewTable(s.console.out, "UNTIL", "HELD", "LEAST", "MOST", "CAPACITY", "GRANTED", "ENDED", "LAPSED")
			for _, e := range found.Points {
				cells := make([]string, 0, 8)
				for _, name := range []string{"at", "held", "held_min", "held_max", "capacity", "granted", "ended", "lapsed"} {
					cells = append(cells, e.text(name))
				}
				t.AddRow(cells...)
			}
			if err := t.Flush(); err != nil {
				return fmt.Errorf("writing the series: %w", err)
			}
			return nil
		})
	})
	command.Flags().StringVar(&span, "range", "1h", "1h, 24h or 7d")
	complete(command, "range", "1h", "24h", "7d")
	return command
}

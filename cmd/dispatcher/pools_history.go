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

func historyOf(p noun) *cobra.Command {
	since, limit := time.Duration(0), 0
	asked := func(flags *pflag.FlagSet) url.Values {
		q := filtered(flags, "slot", "order")
		if since > 0 {
			q.Set("from", time.Now().Add(-since).UTC().Format(time.RFC3339Nano))
		}
		return q
	}
	command := p.on("history", "Show who held a pool's slots, since when, and how it ended", func(s *session, pool string) error {
		if limit < 0 || since < 0 {
			return usageError{errors.New("--limit and --since must not be negative")}
		}
		return s.list(list{path: operators.Path("pools", pool, "history"), filters: asked, columns: []column{
			member("SLOT", "slot"), member("DEVICE", "device"), member("TASK", "task"), member("BATCH", "batch"), member("TOKEN", "token"),
			member("GRANTED", "granted_at"), member("ENDED", "ended_at"),
			{"HOW", howEnded},
		}}, limit)
	})
	flags := command.Flags()
	flags.String("slot", "", "only this slot, or from one to another: 17, 60-119")
	flags.String("order", "newest", "newest or oldest ends first")
	flags.DurationVar(&since, "since", 0, "only what ended in this time, or lasts: 24h")
	flags.IntVar(&limit, "limit", 100, "most entries to show; 0: all")
	complete(command, "order", "newest", "oldest")
	return command
}

// howEnded returns how a holding ended. A holding that has not ended has no ended_by.
func howEnded(e entry) string {
	if how := e.text("ended_by"); how != "" {
		return how
	}
	return "holds it"
}

func seriesOf(p noun) *cobra.Command {
	span := ""
	command := p.on("series", "Show how full a pool was in the last hour, day or week", func(s *session, pool string) error {
		var found struct{ Points []entry }
		return s.view(operators.Path("pools", pool, "series"), operators.Query("range", span), &found, func() error {
			t := terminal.NewTable(s.console.out, "UNTIL", "HELD", "LEAST", "MOST", "CAPACITY", "GRANTED", "ENDED", "LAPSED")
			for _, e := range found.Points {
				cells := make([]string, 0, 8)
				for _, name := range []string{"at", "held", "held_min", "held_max", "capacity", "granted", "ended", "lapsed"} {
					cells = append(cells, e.text(name))
				}
				t.Row(cells...)
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

package dispatcher_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
)

// BenchmarkStorm lets 10,000 devices report to a full pool, as many at once as a
// replica takes, and each ask four times in a row instead of when it is told to.
// It compares what that costs with refusals that are repeated from memory
// (Config.Recall) and without: time and calls for a report.
//
//	go test ./dispatcher -run '^$' -bench Storm -benchtime 1x
func BenchmarkStorm(b *testing.B) {
	for _, recall := range []bool{true, false} {
		b.Run(fmt.Sprint("recall=", recall), func(b *testing.B) {
			s := newStorm(b, recall)
			s.answers("Views")
			s.answers("Acquire")
			_, commands := s.redisWork()
			reports := 0
			for b.Loop() {
				reports += s.report(devices.ReasonFull, 4)
			}
			per := func(n float64) float64 { return n / float64(reports) }
			b.ReportMetric(per(float64(b.Elapsed().Microseconds())), "µs/report")
			b.ReportMetric(per(float64(s.answers("Views"))), "readings/report")
			b.ReportMetric(per(float64(s.answers("Acquire"))), "acquires/report")
			_, after := s.redisWork()
			b.ReportMetric(per(after-commands), "redis-commands/report")
		})
	}
}

// storm is a fleet that finds a pool full.
type storm struct {
	*bench
	*spies
	names []string
}

func newStorm(b *testing.B, recall bool) *storm {
	b.Helper()
	s := &storm{spies: &spies{}}
	s.bench = servers(b, s.config, func(c *dispatcher.Config) { c.Recall, c.Jitter = recall, nil })
	for i := range 10_000 {
		s.names = append(s.names, fmt.Sprint("d", i))
	}
	s.report(devices.ReasonNone, 1) // registers them
	holders := make([]string, 60)
	for i := range holders {
		holders[i] = fmt.Sprint("holder", i)
	}
	s.pool("a", len(holders), time.Hour)
	s.batch("a", nil, holders...)
	for _, device := range holders {
		s.granted(device)
	}
	s.batch("a", nil, s.names...)
	return s
}

// report lets all devices report so often, and returns how many reports that were.
func (s *storm) report(want devices.Reason, times int) (reports int) {
	s.t.Helper()
	var wait sync.WaitGroup
	queue := make(chan string)
	for range 512 {
		wait.Go(func() {
			for device := range queue {
				for range times {
					s.expectReason(device, `{}`, want)
				}
			}
		})
	}
	for _, device := range s.names {
		queue <- device
	}
	close(queue)
	wait.Wait()
	return times * len(s.names)
}

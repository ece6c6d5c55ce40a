package slots_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// BenchmarkWaitingFleet measures a fleet of 1,000,000 pollers that wait for 60 slots of 30 s, without and with long sleeps. It measures how
// many reports the fleet sends per second, and the share of one processor that Redis and this process need for these reports.
func BenchmarkWaitingFleet(b *testing.B) {
	const fleet = 1_000_000
	client := redis.NewUniversalClient(redisconn.Options(servers.StartRedis(b).Addr))
	b.Cleanup(func() { _ = client.Close() })
	s := slots.New(client)
	pace := slots.Pace{MeanHold: 30 * time.Second, MinWait: time.Second, ReportPeriod: 30 * time.Second, OfferTTL: 3 * time.Second}
	_, err := s.Restore(b.Context(), "pool", slots.Config{Capacity: 60, Version: 1}, newHoldings("l", 60))
	must.Succeed(b, err)
	joiners := newJoiners(fleet, 1)
	for i := range joiners {
		joiners[i].Reach = slots.ReachNone
	}
	quiet := pace
	quiet.ReportPeriod = 24 * time.Hour // no waiter is removed while the fleet is built
	for part := range slices.Chunk(joiners, 5000) {
		_, err := s.Join(b.Context(), "pool", quiet, part)
		must.Succeed(b, err)
	}
	for _, longest := range []time.Duration{0, 10 * time.Minute} {
		b.Run(fmt.Sprint("longest sleep ", longest), func(b *testing.B) {
			pace.LongestSleep = longest
			var n, rate float64
			for b.Loop() {
				i := int(n*7919) % fleet // a sample of the whole queue
				w := slots.Want{Lease: strconv.Itoa(i), TTL: time.Hour, Batch: 1, Task: int64(i)}
				got, _, err := s.Acquire(b.Context(), "pool", pace, []slots.Request{{Device: fmt.Sprint("d", i), Wants: []slots.Want{w}, Chance: 0.5}})
				must.Succeed(b, err)
				n++
				rate += 1 / got[0].AskAfter.Seconds()
			}
			rate *= fleet / n
			b.ReportMetric(rate, "reports/s")
			b.ReportMetric(rate*b.Elapsed().Seconds()/n, "processors")
		})
	}
}

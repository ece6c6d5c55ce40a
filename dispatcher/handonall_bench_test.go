package dispatcher_test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/slots"
)

// BenchmarkHandOnAll measures one pass of `hand on` over 3,000 full pools, each with one waiting device. The device
// either polls or can be woken. For each pass, the benchmark reports the elapsed time and the work of this process
// and of Redis. A replica runs two passes a second.
func BenchmarkHandOnAll(b *testing.B) {
	const pools = 3000
	for name, reach := range map[string]slots.Reach{"pollers": slots.ReachNone, "told": slots.ReachPush} {
		b.Run(name, func(b *testing.B) {
			bench := newServerBench(b, withWaker(&wakeRecorder{}))
			for i := range pools {
				bench.createPool(fmt.Sprint("p", i), 1, minute)
			}
			bench.reconcile()
			for i := range pools {
				for device := range 2 {
					bench.requestSlot(fmt.Sprint("p", i), fmt.Sprint("d", device), int64(2*i+device), reach)
				}
			}
			bench.must(bench.Waiters.Filler.FillAllPools(bench.ctx))
			own := processCPU(b)
			cpu, commands := bench.redisUsage()
			for b.Loop() {
				bench.must(bench.Waiters.Filler.FillAllPools(bench.ctx))
			}
			cpuAfter, commandsAfter := bench.redisUsage()
			b.ReportMetric(float64((processCPU(b)-own).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64((cpuAfter-cpu).Microseconds())/1000/float64(b.N), "redis-ms/op")
			b.ReportMetric((commandsAfter-commands)/float64(b.N), "commands/op")
		})
	}
}

// requestSlot requests a slot of the pool for a device. If no slot is free, the device joins the queue.
func (b *testBench) requestSlot(pool, device string, task int64, reach slots.Reach) {
	b.t.Helper()
	pace := slots.Pace{MeanHold: minute, MinWait: minute, ReportPeriod: time.Hour, OfferTTL: minute}
	want := slots.Want{Lease: strconv.FormatInt(task, 10), TTL: time.Hour, Batch: 1, Task: task}
	request := slots.Request{Device: device, Reach: reach, Wants: []slots.Want{want}}
	b.must(b.semaphore.Serve(b.ctx, []slots.Call{{Pool: pool, Pace: pace, Exchange: slots.Exchange{Requests: []slots.Request{request}}}})[0].Err)
}

// processCPU returns the CPU time that this process has used so far.
func processCPU(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	must.Succeed(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// redisUsage returns the CPU time that Redis has used so far, and the number of commands that it has run.
func (b *testBench) redisUsage() (cpu time.Duration, commands float64) {
	b.t.Helper()
	text, err := b.redis.Info(b.ctx, "cpu", "stats").Result()
	b.must(err)
	for line := range strings.SplitSeq(text, "\r\n") {
		field, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseFloat(value, 64)
		switch field {
		case "used_cpu_sys", "used_cpu_user":
			cpu += time.Duration(n * float64(time.Second))
		case "total_commands_processed":
			commands = n
		}
	}
	return cpu, commands
}

package bench

import (
	"os"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// measureCPU calls do. It adds to the result of do the processor time that each process used during this call.
func (s *testbed) measureCPU(do func() figures) figures {
	if *statements {
		s.resetStatementStats()
	}
	before := s.cpuSeconds()
	done := do()
	done.cpu = s.cpuSeconds()
	for name, used := range before {
		done.cpu[name] -= used
	}
	if *statements {
		s.printSlowestStatements(done.count)
	}
	return done
}

// cpuSeconds returns the seconds of processor time that each process has used so far.
func (s *testbed) cpuSeconds() map[string]float64 {
	times := servers.ReadProcessorTimes()
	used := map[string]float64{
		"postgres": times.TreeTime(s.postgres.Pid()).Seconds(),
		"redis":    times.TreeTime(s.redis.Pid()).Seconds(),
		"load":     times.ProcessTime(os.Getpid()).Seconds(),
	}
	if s.broker != nil {
		used["broker"] = times.TreeTime(s.broker.Pid()).Seconds()
	}
	for _, server := range s.servers {
		used["server"] += times.TreeTime(server.Pid()).Seconds()
	}
	return used
}

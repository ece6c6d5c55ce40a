package bench

import (
	"os"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// measured counts the processor time that each process takes for what do does.
func (s *site) measured(do func() figures) figures {
	if *statements {
		s.forget()
	}
	before := s.cpu()
	done := do()
	done.cpu = s.cpu()
	for name, used := range before {
		done.cpu[name] -= used
	}
	if *statements {
		s.show(done.count)
	}
	return done
}

// cpu is the seconds of processor time that each process used so far.
func (s *site) cpu() map[string]float64 {
	times := servers.ReadProcessorTimes()
	used := map[string]float64{
		"postgres": times.Tree(s.postgres.Pid()).Seconds(),
		"redis":    times.Tree(s.redis.Pid()).Seconds(),
		"load":     times.Own(os.Getpid()).Seconds(),
	}
	if s.broker != nil {
		used["broker"] = times.Tree(s.broker.Pid()).Seconds()
	}
	for _, server := range s.servers {
		used["server"] += times.Tree(server.Pid()).Seconds()
	}
	return used
}

package makespan

import (
	"os"
	"runtime"
	"strings"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// cpuTimes is the processor time that was used so far. On a system without /proc it is empty.
type cpuTimes struct {
	readAt  time.Time
	servers time.Duration // of the servers of the row, including their child processes
	fleet   time.Duration // of this process: devices and external system
	machine time.Duration // of all processes of the machine
}

// cores is the average number of processors that were in use.
type cores struct{ servers, fleet, machine float64 }

func (p *rowServers) readCPUTimes() cpuTimes {
	l := cpuTimes{readAt: time.Now(), machine: machineTime()}
	times := servers.ReadProcessorTimes()
	for _, pid := range p.pids {
		l.servers += times.TreeTime(pid)
	}
	l.fleet = times.ProcessTime(os.Getpid())
	return l
}

func (l cpuTimes) coresSince(earlier cpuTimes) cores {
	elapsed := float64(l.readAt.Sub(earlier.readAt))
	return cores{
		servers: float64(l.servers-earlier.servers) / elapsed,
		fleet:   float64(l.fleet-earlier.fleet) / elapsed,
		machine: float64(l.machine-earlier.machine) / elapsed,
	}
}

// machineTime returns how long the processors of the machine were not idle, summed over all processors.
func machineTime() time.Duration {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0
	}
	return servers.SumTicks(fields[1:4]) + servers.SumTicks(fields[6:9]) // user, nice, system; irq, softirq, steal
}

func processorCount() int { return runtime.NumCPU() }

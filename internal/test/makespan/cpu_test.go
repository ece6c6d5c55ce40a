package makespan

import (
	"os"
	"runtime"
	"strings"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// load is the processor time used so far. Without /proc it is empty.
type load struct {
	at      time.Time
	servers time.Duration // of the servers of the plant, including their child processes
	fleet   time.Duration // of this process: devices and external system
	machine time.Duration // of all processes of the machine
}

// cores is the average use of processors, as a number of processors.
type cores struct{ servers, fleet, machine float64 }

func (p *plant) load() load {
	l := load{at: time.Now(), machine: machineTime()}
	times := servers.ReadProcessorTimes()
	for _, pid := range p.pids {
		l.servers += times.Tree(pid)
	}
	l.fleet = times.Own(os.Getpid())
	return l
}

func (l load) since(earlier load) cores {
	elapsed := float64(l.at.Sub(earlier.at))
	return cores{
		servers: float64(l.servers-earlier.servers) / elapsed,
		fleet:   float64(l.fleet-earlier.fleet) / elapsed,
		machine: float64(l.machine-earlier.machine) / elapsed,
	}
}

// machineTime returns the time that all processors were not idle.
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
	return servers.Ticks(fields[1:4]) + servers.Ticks(fields[6:9]) // user, nice, system; irq, softirq, steal
}

func processors() int { return runtime.NumCPU() }

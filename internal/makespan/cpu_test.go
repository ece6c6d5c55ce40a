package makespan

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of /proc, the same on every Linux that Go runs on.
const ticksPerSecond = 100

// load is processor time used so far. Without /proc it is empty.
type load struct {
	at      time.Time
	servers time.Duration // of the plant, children included
	fleet   time.Duration // of this process: devices and external system
	machine time.Duration // of everything on it
}

// cores is what was used on average, in processors.
type cores struct{ servers, fleet, machine float64 }

func (p *plant) load() load {
	l := load{at: time.Now(), machine: machineTime()}
	times, children := processes()
	for _, pid := range p.pids {
		l.servers += tree(pid, times, children)
	}
	l.fleet = times[os.Getpid()]
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

// tree is the time of a process and of its descendants.
func tree(pid int, times map[int]time.Duration, children map[int][]int) time.Duration {
	sum := times[pid]
	for _, child := range children[pid] {
		sum += tree(child, times, children)
	}
	return sum
}

// processes reads each process' own time, with that of children that ended,
// and who its children are.
func processes() (times map[int]time.Duration, children map[int][]int) {
	times, children = map[int]time.Duration{}, map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		// The name, in brackets, may hold anything; fields are numbered from 3 after it.
		fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
		last := 13 // utime, stime
		if pid != os.Getpid() {
			last = 15 // and those of children that were waited for
		}
		times[pid] = ticks(fields[11:last])
	}
	return times, children
}

// machineTime is what all processors spent on anything but idling.
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
	return ticks(fields[1:4]) + ticks(fields[6:9]) // user, nice, system; irq, softirq, steal
}

func ticks(fields []string) (sum time.Duration) {
	for _, field := range fields {
		n, _ := strconv.ParseInt(field, 10, 64)
		sum += time.Duration(n) * time.Second / ticksPerSecond
	}
	return sum
}

func processors() int { return runtime.NumCPU() }

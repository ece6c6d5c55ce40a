package servers

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ProcessorTimes holds the processor time that each process of the machine has used so far. On a
// system without /proc it is empty.
type ProcessorTimes struct {
	byPid    map[int]time.Duration // key: process id
	children map[int][]int
}

// ReadProcessorTimes reads the time and the parent of each process. The time of a process includes its children that have ended, except for
// the calling process.
func ReadProcessorTimes() ProcessorTimes {
	p := ProcessorTimes{byPid: map[int]time.Duration{}, children: map[int][]int{}}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		// In this file of /proc, the name of the process is in brackets and may contain any character. The fields
		// after it are numbered from 3.
		fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		p.children[parent] = append(p.children[parent], pid)
		last := 13 // utime, stime
		if pid != os.Getpid() {
			last = 15 // cutime and cstime: children that were waited for
		}
		p.byPid[pid] = SumTicks(fields[11:last])
	}
	return p
}

// ProcessTime returns the processor time of one process, without its descendants.
func (p ProcessorTimes) ProcessTime(pid int) time.Duration { return p.byPid[pid] }

// TreeTime returns the processor time of a process and of all its descendants.
func (p ProcessorTimes) TreeTime(pid int) time.Duration {
	sum := p.byPid[pid]
	for _, child := range p.children[pid] {
		sum += p.TreeTime(child)
	}
	return sum
}

// ticksPerSecond is the unit of the times in /proc: ticks per second. It is the same on every Linux that Go
// supports.
const ticksPerSecond = 100

// SumTicks returns the sum of several time fields of /proc.
func SumTicks(fields []string) (sum time.Duration) {
	for _, field := range fields {
		n, _ := strconv.ParseInt(field, 10, 64)
		sum += time.Duration(n) * time.Second / ticksPerSecond
	}
	return sum
}

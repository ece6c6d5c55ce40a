package servers

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ProcessorTimes is the processor time of each process so far. Without /proc it is empty.
type ProcessorTimes struct {
	own      map[int]time.Duration // by process
	children map[int][]int
}

// ReadProcessorTimes reads each process' own time, with that of children that ended, and
// whose child it is.
func ReadProcessorTimes() ProcessorTimes {
	p := ProcessorTimes{own: map[int]time.Duration{}, children: map[int][]int{}}
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
		p.children[parent] = append(p.children[parent], pid)
		last := 13 // utime, stime
		if pid != os.Getpid() {
			last = 15 // and those of children that were waited for
		}
		p.own[pid] = Ticks(fields[11:last])
	}
	return p
}

// Own is the time of a process alone.
func (p ProcessorTimes) Own(pid int) time.Duration { return p.own[pid] }

// Tree is the time of a process and of its descendants.
func (p ProcessorTimes) Tree(pid int) time.Duration {
	sum := p.own[pid]
	for _, child := range p.children[pid] {
		sum += p.Tree(child)
	}
	return sum
}

// ticksPerSecond is the unit of /proc, the same on every Linux that Go runs on.
const ticksPerSecond = 100

// Ticks is the sum of such fields of /proc.
func Ticks(fields []string) (sum time.Duration) {
	for _, field := range fields {
		n, _ := strconv.ParseInt(field, 10, 64)
		sum += time.Duration(n) * time.Second / ticksPerSecond
	}
	return sum
}

package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ticksPerSecond is the unit of /proc, the same on every Linux that Go runs on.
const ticksPerSecond = 100

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
	times, children := processes()
	used := map[string]float64{
		"postgres": tree(s.postgres.Pid(), times, children),
		"redis":    tree(s.redis.Pid(), times, children),
		"load":     times[os.Getpid()],
	}
	for _, server := range s.servers {
		used["server"] += tree(server.Pid(), times, children)
	}
	return used
}

// tree is the time of a process and of its descendants.
func tree(pid int, times map[int]float64, children map[int][]int) float64 {
	sum := times[pid]
	for _, child := range children[pid] {
		sum += tree(child, times, children)
	}
	return sum
}

// processes reads the time of each process, with that of children that ended, and which
// children it has.
func processes() (times map[int]float64, children map[int][]int) {
	times, children = map[int]float64{}, map[int][]int{}
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
		for _, field := range fields[11:last] {
			n, _ := strconv.ParseFloat(field, 64)
			times[pid] += n / ticksPerSecond
		}
	}
	return times, children
}

package main

import (
	"fmt"
	"os"
)

const never = 1e18 // seconds

// now returns the seconds of a clock that does not jump, and that runs while the machine sleeps.
func now() (seconds float64) {
	text, err := os.ReadFile("/proc/uptime")
	check(err)
	_, _ = fmt.Sscan(string(text), &seconds)
	return seconds
}

// work is the running task, with its lease.
type work struct {
	grant
	stop                func(why string)
	why                 string // why it was stopped
	end, lease, renewAt float64
}

// extend moves the end of the lease. A renewal is due after half of the remaining time, unless this half is too short.
func (w *work) extend(end float64) {
	w.end, w.renewAt = max(w.end, end), never
	if half := (w.end - now()) / 2; half >= min(1, w.lease/4) && w.why == "" {
		w.renewAt = now() + half
	}
}

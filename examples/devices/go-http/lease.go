package main

import (
	"fmt"
	"os"
)

const never = 1e18 // seconds

// monotonicNow returns the seconds of a clock that never jumps and does not stop while the machine sleeps.
func monotonicNow() (seconds float64) {
	text, err := os.ReadFile("/proc/uptime")
	exitOnError(err)
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

// extend sets the end of the lease to leaseEnd, unless the lease already ends later. The device renews after half of the remaining time.
// If this half is below a second and below a quarter of a lease, it does not renew.
func (w *work) extend(leaseEnd float64) {
	w.end, w.renewAt = max(w.end, leaseEnd), never
	if half := (w.end - monotonicNow()) / 2; half >= min(1, w.lease/4) && w.why == "" {
		w.renewAt = monotonicNow() + half
	}
}

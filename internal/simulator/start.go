package simulator

import (
	"maps"
	"slices"
	"time"
)

// Start describes how a device began a task.
type Start struct {
	Task, Token int64
	Woken       time.Time // when a push asked for the report; the zero time means that none did
	Asked       time.Time // when the device sent the report that was answered with the grant
	Granted     time.Time // when the grant arrived
	Gone        bool      // the device becomes silent for good with this task
}

func (l *ledger) began(s Start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts[s.Token] = s
}

// start returns the start of the grant with this token.
func (l *ledger) start(token int64) (Start, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.starts[token]
	return s, ok
}

// lastSettled returns when the last outcome arrived.
func (l *ledger) lastSettled() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settledAt
}

// gone returns, for each task that was started, in the order of task ids, whether its device became silent for good with it.
func (l *ledger) gone() []bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := map[int64]bool{}
	for _, s := range l.starts {
		of[s.Task] = of[s.Task] || s.Gone
	}
	gone := make([]bool, 0, len(of))
	for _, task := range slices.Sorted(maps.Keys(of)) {
		gone = append(gone, of[task])
	}
	return gone
}

// firstStarts returns when each task was first granted, in the order of task ids.
func (l *ledger) firstStarts() []time.Time {
	l.mu.Lock()
	first := map[int64]time.Time{}
	for _, s := range l.starts {
		if at, ok := first[s.Task]; !ok || s.Granted.Before(at) {
			first[s.Task] = s.Granted
		}
	}
	l.mu.Unlock()
	times := make([]time.Time, 0, len(first))
	for _, task := range slices.Sorted(maps.Keys(first)) {
		times = append(times, first[task])
	}
	return times
}

package simulator

import (
	"maps"
	"slices"
	"time"
)

// Start is how a device came to begin a task.
type Start struct {
	Task, Token int64
	Woken       time.Time // when it was told to report; zero: it came by itself
	Asked       time.Time // when it sent the report that was granted the task
	Granted     time.Time // when the grant arrived
	Gone        bool      // the device fell silent for good with it
}

func (l *ledger) began(s Start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts[s.Token] = s
}

// start is how the grant with this token began.
func (l *ledger) start(token int64) (Start, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.starts[token]
	return s, ok
}

// lastSettled is when the last result had its outcome.
func (l *ledger) lastSettled() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settledAt
}

// gone says of each task that was begun, in the order in which they were made,
// whether its device fell silent for good with it.
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

// firstStarts returns when each task was first granted, in the order in which
// the tasks were made.
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

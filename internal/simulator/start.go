package simulator

import (
	"maps"
	"slices"
	"time"
)

// Start describes how a device began a task.
type Start struct {
	Task, Token int64
	Woken       time.Time // when a push requested the report; zero without a push
	Asked       time.Time // when the device sent the report that was answered with the grant
	Granted     time.Time // when the grant arrived
	Gone        bool      // the device becomes silent for good with this task
}

func (l *resultLog) recordStart(start Start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts[start.Token] = start
}

func (l *resultLog) findStart(token int64) (start Start, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.starts[token]
	return s, ok
}

func (l *resultLog) lastAckTime() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastAckAt
}

// startsByTask returns the first start of each task, in the order of task ids. The field Gone of a start is true if any
// device became silent for good during the task.
func (l *resultLog) startsByTask() []Start {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := map[int64]Start{}
	for _, s := range l.starts {
		one, ok := first[s.Task]
		gone := one.Gone || s.Gone
		if !ok || s.Granted.Before(one.Granted) {
			one = s
		}
		one.Gone = gone
		first[s.Task] = one
	}
	starts := make([]Start, 0, len(first))
	for _, task := range slices.Sorted(maps.Keys(first)) {
		starts = append(starts, first[task])
	}
	return starts
}

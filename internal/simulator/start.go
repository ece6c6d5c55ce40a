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

// recordStart records how a device began a task.
func (l *resultLog) recordStart(start Start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts[start.Token] = start
}

// findStart returns the Start of the task that was granted with this token.
func (l *resultLog) findStart(token int64) (Start, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.starts[token]
	return s, ok
}

// lastAckTime returns when the last outcome arrived.
func (l *resultLog) lastAckTime() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastAckAt
}

// goneByTask returns, for each started task in the order of task ids, whether its device became silent for good
// during the task.
func (l *resultLog) goneByTask() []bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	goneByID := map[int64]bool{}
	for _, s := range l.starts {
		goneByID[s.Task] = goneByID[s.Task] || s.Gone
	}
	gone := make([]bool, 0, len(goneByID))
	for _, task := range slices.Sorted(maps.Keys(goneByID)) {
		gone = append(gone, goneByID[task])
	}
	return gone
}

// firstStarts returns when each task was first granted, in the order of task ids.
func (l *resultLog) firstStarts() []time.Time {
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

package simulator

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"
)

// record is the entry in a resultLog for one result of a device.
type record struct {
	grantKey
	status         string
	output         json.RawMessage
	outcome        string    // "" means not acknowledged yet
	ackedAt        time.Time // when the outcome arrived
	sentWithOutput bool      // false if the result was sent without its output, so that bytes cannot be compared
}

// resultLog contains the results in the journals of all devices, and the starts of their tasks. At the end of a run, the
// results are compared with the tasks of the server.
type resultLog struct {
	mu        sync.Mutex
	tasks     map[int64][]record
	unacked   int             // number of records without an outcome
	lastAckAt time.Time       // when the last outcome arrived
	starts    map[int64]Start // key: token
}

func newResultLog() *resultLog {
	return &resultLog{tasks: map[int64][]record{}, starts: map[int64]Start{}}
}

func (l *resultLog) add(written *journalEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks[written.task] = append(l.tasks[written.task], record{grantKey: written.grantKey, status: written.status, output: written.output, sentWithOutput: true})
	l.unacked++
}

// recordOutcome stores the first outcome for the result of a grant. A device may send a report several
// times. recordOutcome ignores the outcomes in the replies to the repeated reports. withOutput is false if the result was sent without its output.
func (l *resultLog) recordOutcome(grant grantKey, outcome string, withOutput bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.tasks[grant.task] {
		r := &l.tasks[grant.task][i]
		if r.grantKey == grant && r.outcome == "" {
			r.outcome, r.sentWithOutput, r.ackedAt = outcome, withOutput, time.Now()
			l.unacked--
			l.lastAckAt = r.ackedAt
		}
	}
}

func (l *resultLog) countUnacknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unacked
}

func (l *resultLog) recordsOf(task int64) []record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.tasks[task])
}

func (l *resultLog) hasResult(grant grantKey) bool {
	return slices.ContainsFunc(l.recordsOf(grant.task), func(r record) bool { return r.grantKey == grant })
}

// wasRecordedBefore reports whether the acknowledgement that the result of this grant was recorded reached the device
// before deadline.
func (l *resultLog) wasRecordedBefore(grant grantKey, deadline time.Time) bool {
	return slices.ContainsFunc(l.recordsOf(grant.task), func(r record) bool {
		return r.grantKey == grant && r.outcome == outcomeRecorded && r.ackedAt.Before(deadline)
	})
}

// dropAcknowledgedResults deletes the starts and the acknowledged results of tasks with id <= lastTask, so that the memory of an endless run
// does not grow.
func (l *resultLog) dropAcknowledgedResults(lastTask int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.starts, func(_ int64, s Start) bool { return s.Task <= lastTask })
	for task, records := range l.tasks {
		if task <= lastTask && !slices.ContainsFunc(records, func(r record) bool { return r.outcome == "" }) {
			delete(l.tasks, task)
		}
	}
}

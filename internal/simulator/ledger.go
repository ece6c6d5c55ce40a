package simulator

import (
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// record is what the ledger knows of one result.
type record struct {
	key
	status  string
	output  json.RawMessage
	outcome string    // "" = not acknowledged yet
	at      time.Time // of the outcome
	judged  bool      // false: sent without its output, bytes cannot be compared
}

// ledger is everything the fleet's devices wrote into their journals: what the
// server's tasks are compared with at the end.
type ledger struct {
	mu        sync.Mutex
	tasks     map[int64][]record
	waiting   int             // records without an outcome
	settledAt time.Time       // the last outcome
	starts    map[int64]Start // by token
}

func newLedger() *ledger { return &ledger{tasks: map[int64][]record{}, starts: map[int64]Start{}} }

func (l *ledger) add(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks[e.task] = append(l.tasks[e.task], record{key: e.key, status: e.status, output: e.output, judged: true})
	l.waiting++
}

// settle keeps the first outcome of a result: a later one answers a copy.
func (l *ledger) settle(k key, outcome string, judged bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.tasks[k.task] {
		r := &l.tasks[k.task][i]
		if r.key == k && r.outcome == "" {
			r.outcome, r.judged, r.at = outcome, judged, time.Now()
			l.waiting--
			l.settledAt = r.at
		}
	}
}

// unsettled is how many results still wait for an outcome.
func (l *ledger) unsettled() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// of returns the results of a task, oldest first.
func (l *ledger) of(task int64) []record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.tasks[task])
}

// ended tells whether a device has written the result of a grant.
func (l *ledger) ended(k key) bool {
	return slices.ContainsFunc(l.of(k.task), func(r record) bool { return r.key == k })
}

// recordedBefore tells whether a device knew at a time that its result of a grant was recorded.
func (l *ledger) recordedBefore(k key, at time.Time) bool {
	return slices.ContainsFunc(l.of(k.task), func(r record) bool {
		return r.key == k && r.outcome == outcomeRecorded && r.at.Before(at)
	})
}

// forget drops the acknowledged results of tasks up to an id, so that an
// endless run does not grow.
func (l *ledger) forget(upTo int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.starts) // only a run with an end is asked for them
	for task, records := range l.tasks {
		if task <= upTo && !slices.ContainsFunc(records, func(r record) bool { return r.outcome == "" }) {
			delete(l.tasks, task)
		}
	}
}

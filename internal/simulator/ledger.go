package simulator

import (
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// record is the ledger's entry for one result.
type record struct {
	key
	status  string
	output  json.RawMessage
	outcome string    // "" means not acknowledged yet
	at      time.Time // when the outcome arrived
	judged  bool      // false if the result was sent without its output, so that bytes cannot be compared
}

// ledger holds the results that all devices wrote into their journals. At the end they are compared with the server's tasks.
type ledger struct {
	mu        sync.Mutex
	tasks     map[int64][]record
	waiting   int             // number of records without an outcome
	settledAt time.Time       // when the last outcome arrived
	starts    map[int64]Start // key: token
}

func newLedger() *ledger { return &ledger{tasks: map[int64][]record{}, starts: map[int64]Start{}} }

func (l *ledger) add(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks[e.task] = append(l.tasks[e.task], record{key: e.key, status: e.status, output: e.output, judged: true})
	l.waiting++
}

// settle stores the first outcome of a result. A later outcome answers a copy.
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

// unsettled returns how many results still wait for an outcome.
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

// ended reports whether a device has written the result of a grant.
func (l *ledger) ended(k key) bool {
	return slices.ContainsFunc(l.of(k.task), func(r record) bool { return r.key == k })
}

// recordedBefore reports whether a device knew, before the time at, that the result of its grant was recorded.
func (l *ledger) recordedBefore(k key, at time.Time) bool {
	return slices.ContainsFunc(l.of(k.task), func(r record) bool {
		return r.key == k && r.outcome == outcomeRecorded && r.at.Before(at)
	})
}

// forget drops the acknowledged results of tasks with id <= upTo, so that an endless run does not grow.
func (l *ledger) forget(upTo int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.starts) // only a run that ends reads them
	for task, records := range l.tasks {
		if task <= upTo && !slices.ContainsFunc(records, func(r record) bool { return r.outcome == "" }) {
			delete(l.tasks, task)
		}
	}
}

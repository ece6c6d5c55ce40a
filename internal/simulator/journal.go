package simulator

import (
	"encoding/json"
	"slices"
)

// maxResults is the maximum number of results in a report.
const maxResults = 100

// key identifies one grant of one task.
type key struct{ task, token int64 }

// entry is the result of one grant in a device's journal.
type entry struct {
	key
	status   string
	output   json.RawMessage
	err      string
	reported bool // was in at least one report
	stripped bool // was refused with its output, and is now sent without it
}

// toResult converts the entry to the form of a report.
func (e *entry) toResult() result {
	r := result{Task: e.task, Token: e.token, Status: e.status, Error: e.err}
	if !e.stripped {
		r.Output = e.output
	}
	return r
}

// journal holds the data that a device keeps through a reboot: results without an outcome. Only its device uses it.
type journal struct {
	pending  []*entry // oldest first
	oneByOne bool     // a report was refused, so results are sent one by one
}

// add adds added, a new result, to the journal. It stays there until it is acknowledged.
func (j *journal) add(added *entry) { j.pending = append(j.pending, added) }

// highestToken returns the highest token in the journal.
func (j *journal) highestToken() (token int64) {
	for _, e := range j.pending {
		token = max(token, e.token)
	}
	return token
}

// nextResults returns the results for the next report.
func (j *journal) nextResults() []result {
	n := min(len(j.pending), maxResults)
	if j.oneByOne {
		n = min(n, 1)
	}
	var results []result
	for _, e := range j.pending[:n] {
		e.reported = true
		results = append(results, e.toResult())
	}
	return results
}

// hasUnreported reports whether the journal has a result that was in no report yet.
func (j *journal) hasUnreported() bool {
	return slices.ContainsFunc(j.pending, func(e *entry) bool { return !e.reported })
}

// dropResult drops the result of a grant, whose outcome has arrived.
func (j *journal) dropResult(grant key) {
	j.pending = slices.DeleteFunc(j.pending, func(e *entry) bool { return e.key == grant })
	j.oneByOne = j.oneByOne && len(j.pending) > 0
}

// refuse handles the results of a report that was refused as a whole: the same bytes are never sent again. After the
// first refusal, the results are sent one by one. A result that is refused alone is sent again without its output. If
// it is refused again, refuse removes it from the journal and returns it.
func (j *journal) refuse(results []result) (dropped *entry) {
	if len(results) == 0 {
		return nil
	}
	if len(results) > 1 {
		j.oneByOne = true
		return nil
	}
	e := j.find(key{results[0].Task, results[0].Token})
	if e == nil {
		return nil
	}
	if !e.stripped && len(e.output) > 0 {
		e.stripped = true
		return nil
	}
	j.dropResult(e.key)
	return e
}

// find returns the result of a grant in the journal, or nil if there is none.
func (j *journal) find(grant key) *entry {
	if at := slices.IndexFunc(j.pending, func(e *entry) bool { return e.key == grant }); at >= 0 {
		return j.pending[at]
	}
	return nil
}

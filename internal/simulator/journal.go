package simulator

import (
	"encoding/json"
	"slices"
)

const maxResults = 100

type grantKey struct{ task, token int64 }

type journalEntry struct {
	grantKey
	status   string
	output   json.RawMessage
	err      string
	reported bool // was in at least one report
	stripped bool // was refused with its output, and is now sent without it
}

// journal contains the results for which the server has not sent an outcome. A device keeps its journal through a reboot.
type journal struct {
	pending  []*journalEntry // oldest first
	oneByOne bool            // a report was refused, so results are sent one by one
}

func (j *journal) add(added *journalEntry) { j.pending = append(j.pending, added) }

func (j *journal) highestToken() (token int64) {
	for _, e := range j.pending {
		token = max(token, e.token)
	}
	return token
}

func (j *journal) nextResults() []result {
	n := min(len(j.pending), maxResults)
	if j.oneByOne {
		n = min(n, 1)
	}
	var results []result
	for _, e := range j.pending[:n] {
		e.reported = true
		r := result{Task: e.task, Token: e.token, Status: e.status, Error: e.err}
		if !e.stripped {
			r.Output = e.output
		}
		results = append(results, r)
	}
	return results
}

func (j *journal) hasUnreportedResults() bool {
	return slices.ContainsFunc(j.pending, func(e *journalEntry) bool { return !e.reported })
}

func (j *journal) dropResult(grant grantKey) {
	j.pending = slices.DeleteFunc(j.pending, func(e *journalEntry) bool { return e.grantKey == grant })
	j.oneByOne = j.oneByOne && len(j.pending) > 0
}

// handleRefusedResults records that a report with results was refused, because the same bytes must never be sent again. From now on, the
// device sends results one by one. A result that is refused alone is sent again without its output. If it is refused again,
// handleRefusedResults removes and returns it.
func (j *journal) handleRefusedResults(results []result) (dropped *journalEntry) {
	if len(results) == 0 {
		return nil
	}
	if len(results) > 1 {
		j.oneByOne = true
		return nil
	}
	e := j.findResult(grantKey{results[0].Task, results[0].Token})
	if e == nil {
		return nil
	}
	if !e.stripped && len(e.output) > 0 {
		e.stripped = true
		return nil
	}
	j.dropResult(e.grantKey)
	return e
}

func (j *journal) findResult(grant grantKey) *journalEntry {
	if at := slices.IndexFunc(j.pending, func(e *journalEntry) bool { return e.grantKey == grant }); at >= 0 {
		return j.pending[at]
	}
	return nil
}

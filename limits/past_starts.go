package limits

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/limits/policy"
)

// leaseKeepTime is the time for which Redis keeps the lease id of a counted start. It must be equal to REMEMBER in lua/keys.lua.
const leaseKeepTime = time.Minute

// pastStarts collects, from a history, the starts that a rule would have counted. All ages are the ages at the beginning of the rebuild. The age
// of a start that happened later is negative.
type pastStarts struct {
	rule        *Rule
	spec        string        // spec of the rule; a calendar rule collects the starts of the second period in it
	renewalStep string        // the step of lua/fill.lua that renewClaims sends: "begin" until all starts are sent, then "settle"
	maxAge      time.Duration // a start that is older has no effect on the rule
	recent      []string      // lease ids of the starts of the last minute; counting such a start again must have no effect
	subjects    map[string]*subjectStarts
}

type subjectStarts struct {
	starts    []int64       // ages of the newest starts in ms, ascending; at most rule.maxStarts
	count     int64         // number of starts; only for rules that store no single starts
	newestAge time.Duration // age of the newest start; only for rules that store no single starts
}

// newPastStarts returns an empty collection for a rebuild that began at the time began, by the clock of Redis.
func newPastStarts(rule *Rule, began time.Time) *pastStarts {
	p := &pastStarts{
		rule: rule, spec: rule.scriptSpecAt(began), renewalStep: "begin", maxAge: rule.longestWindow, subjects: make(map[string]*subjectStarts),
	}
	if rule.Algorithm == policy.Calendar {
		p.maxAge = began.Sub(rule.periodsAround(began).starts[1]) + time.Millisecond // the first millisecond of the period belongs to the period
	}
	return p
}

// addStart adds a start of the history. The starts must be added roughly in the order from the newest to the oldest. item is the rule with the
// subject of the start. isCounted is false if the start is too old to have an effect on the rule. Then item is empty.
func (p *pastStarts) addStart(start Start) (item Item, isCounted bool) {
	if start.Ago < leaseKeepTime {
		p.recent = append(p.recent, start.Lease)
	}
	if start.Ago >= p.maxAge {
		return item, false
	}
	item = Item{Rule: p.rule, Subject: p.rule.Subject(start.Facts)}
	s := p.subjects[item.Subject.digest]
	if s == nil {
		s = &subjectStarts{newestAge: start.Ago}
		p.subjects[item.Subject.digest] = s
	}
	s.count++
	s.newestAge = min(s.newestAge, start.Ago)
	s.insertStart(start.Ago.Milliseconds(), p.rule.maxStarts)
	return item, true
}

// insertStart inserts the age of a start into the sorted list of ages, and keeps at most maxStarts ages.
func (s *subjectStarts) insertStart(ageMS, maxStarts int64) {
	i := len(s.starts)
	for i > 0 && s.starts[i-1] > ageMS {
		i--
	}
	if int64(i) < maxStarts {
		s.starts = slices.Insert(s.starts, i, ageMS)
		s.starts = s.starts[:min(int64(len(s.starts)), maxStarts)]
	}
}

// startChunks yields the starts of a subject in chunks, in the form in which they are sent to Redis. With each chunk it yields the number of
// starts in earlier chunks. elapsed returns the time since the beginning of the rebuild.
func (p *pastStarts) startChunks(subject *subjectStarts, elapsed func() time.Duration) iter.Seq2[int, []any] {
	return func(yield func(int, []any) bool) {
		if p.rule.maxStarts == 0 {
			yield(0, []any{fmt.Sprintf("%d|%d", max((subject.newestAge+elapsed()).Milliseconds(), 0), subject.count)})
			return
		}
		offset := 0
		for part := range slices.Chunk(subject.starts, maxStartsPerCall) {
			ages := make([]any, len(part))
			for i, ago := range part {
				ages[i] = max(ago+elapsed().Milliseconds(), 0)
			}
			if !yield(offset, ages) {
				return
			}
			offset += len(part)
		}
	}
}

package limits

import (
	"fmt"
	"iter"
	"slices"
	"time"
)

// leaseKeepTime is the time for which Redis keeps the lease of a counted start: REMEMBER in lua/keys.lua.
const leaseKeepTime = time.Minute

// pastStarts collects the starts that a rule would have counted.
type pastStarts struct {
	rule        *Rule
	renewalStep string        // the step of lua/fill.lua that renew sends again: begin until all starts are sent, then settle
	maxAge      time.Duration // older starts have no effect on the rule
	recent      []string      // leases of the last minute; they may be counted again and must have an effect only once
	subjects    map[string]*subjectStarts
}

// subjectStarts contains the starts of one subject in pastStarts.
type subjectStarts struct {
	starts    []int64       // age of the newest starts in ms, ascending; at most rule.maxStarts
	count     int64         // number of starts; used by rules that only keep a count
	newestAge time.Duration // age of the newest start; used by rules that only keep a count
}

func newPastStarts(r *Rule, now time.Time) *pastStarts {
	p := &pastStarts{rule: r, renewalStep: "begin", maxAge: r.longestWindow, subjects: make(map[string]*subjectStarts)}
	if r.Algorithm == Calendar {
		p.maxAge = now.Sub(r.periodsAround(now).starts[1]) + time.Millisecond // the first millisecond of the period belongs to the period
	}
	return p
}

// addStart adds a start. matters reports whether the start still has an effect on the rule. Starts
// arrive approximately in the order of their times, newest first.
func (p *pastStarts) addStart(start Start) (item Item, matters bool) {
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
	s.insertStart(max(start.Ago.Milliseconds(), 0), p.rule.maxStarts)
	return item, true
}

// insertStart inserts a start in the order of time. It keeps at most the newest maxStarts starts.
func (s *subjectStarts) insertStart(ago, maxStarts int64) {
	i := len(s.starts)
	for i > 0 && s.starts[i-1] > ago {
		i--
	}
	if int64(i) < maxStarts {
		s.starts = slices.Insert(s.starts, i, ago)
		s.starts = s.starts[:min(int64(len(s.starts)), maxStarts)]
	}
}

// chunks returns the chunks in which a subject is sent. The key of each chunk is the number of
// starts in the earlier chunks.
func (p *pastStarts) chunks(s *subjectStarts) iter.Seq2[int, []any] {
	return func(yield func(int, []any) bool) {
		if p.rule.maxStarts == 0 {
			yield(0, []any{fmt.Sprintf("%d|%d", max(s.newestAge.Milliseconds(), 0), s.count)})
			return
		}
		offset := 0
		for part := range slices.Chunk(s.starts, maxStartsPerCall) {
			ages := make([]any, len(part))
			for i, ago := range part {
				ages[i] = ago
			}
			if !yield(offset, ages) {
				return
			}
			offset += len(part)
		}
	}
}

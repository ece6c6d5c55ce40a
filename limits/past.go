package limits

import (
	"fmt"
	"iter"
	"slices"
	"time"
)

// remembered is the time for which Redis keeps the lease of a counted start: REMEMBER in lua/keys.lua.
const remembered = time.Minute

// past collects the starts that a rule would have counted.
type past struct {
	rule     *Rule
	at       string        // the current step in lua/fill.lua
	within   time.Duration // older starts have no effect on the rule
	recent   []string      // leases of the last minute; they may be counted again and must have an effect only once
	subjects map[string]*pastSubject
}

// pastSubject contains the starts of one subject of a past.
type pastSubject struct {
	starts []int64       // age of the newest starts in ms, ascending; at most rule.cap
	n      int64         // number of starts; used by rules that only keep a count
	newest time.Duration // age of the newest start; used by rules that only keep a count
}

func newPast(r *Rule, now time.Time) *past {
	p := &past{rule: r, at: "begin", within: r.longest, subjects: make(map[string]*pastSubject)}
	if r.Algorithm == Calendar {
		p.within = now.Sub(r.around(now).starts[1]) + time.Millisecond // the first millisecond of the period belongs to the period
	}
	return p
}

// add adds a start. matters reports whether the start still has an effect on the rule. Starts
// arrive approximately in the order of their times, newest first.
func (p *past) add(start Start) (item Item, matters bool) {
	if start.Ago < remembered {
		p.recent = append(p.recent, start.Lease)
	}
	if start.Ago >= p.within {
		return item, false
	}
	item = Item{Rule: p.rule, Subject: p.rule.Subject(start.Facts)}
	s := p.subjects[item.Subject.digest]
	if s == nil {
		s = &pastSubject{newest: start.Ago}
		p.subjects[item.Subject.digest] = s
	}
	s.n++
	s.newest = min(s.newest, start.Ago)
	s.keep(max(start.Ago.Milliseconds(), 0), p.rule.cap)
	return item, true
}

// keep inserts a start in the order of time. It keeps at most the newest `most` starts.
func (s *pastSubject) keep(ago, most int64) {
	i := len(s.starts)
	for i > 0 && s.starts[i-1] > ago {
		i--
	}
	if int64(i) < most {
		s.starts = slices.Insert(s.starts, i, ago)
		s.starts = s.starts[:min(int64(len(s.starts)), most)]
	}
}

// parts returns the chunks in which a subject is sent. The key of each chunk is the number of
// starts in the earlier chunks.
func (p *past) parts(s *pastSubject) iter.Seq2[int, []any] {
	return func(yield func(int, []any) bool) {
		if p.rule.cap == 0 {
			yield(0, []any{fmt.Sprintf("%d|%d", max(s.newest.Milliseconds(), 0), s.n)})
			return
		}
		before := 0
		for part := range slices.Chunk(s.starts, piece) {
			words := make([]any, len(part))
			for i, ago := range part {
				words[i] = ago
			}
			if !yield(before, words) {
				return
			}
			before += len(part)
		}
	}
}

package limits

import (
	"fmt"
	"iter"
	"slices"
	"time"
)

// remembered is how long a count is known by its lease: REMEMBER in keys.lua.
const remembered = time.Minute

// past is what a rule would have counted.
type past struct {
	rule     *Rule
	at       string        // step of fill.lua that it is at
	within   time.Duration // what is older does not matter
	recent   []string      // leases that are said again, and must not be counted again
	subjects map[string]*pastSubject
}

// pastSubject is one of its subjects.
type pastSubject struct {
	starts []int64       // ms ago, ascending: the newest, as many as are kept
	n      int64         // of rules that only count
	newest time.Duration // likewise
}

func newPast(r *Rule, now time.Time) *past {
	p := &past{rule: r, at: "begin", within: r.longest, subjects: make(map[string]*pastSubject)}
	if r.Algorithm == Calendar {
		p.within = now.Sub(r.around(now).starts[1]) + time.Millisecond // its first one belongs to it
	}
	return p
}

// add takes a start, and says whether it matters still. They come about in the order of their
// times, the newest first.
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

// keep adds a start in the order of time, and drops the oldest of more than are kept.
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

// parts are the pieces in which a subject is sent, by how much of it was sent before.
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

package limits

import (
	"iter"
	"time"
)

// remembered is how long a count is known by its lease: REMEMBER in common.lua.
const remembered = time.Minute

// past is what a rule would have counted.
type past struct {
	rule     *Rule
	within   time.Duration // what is older does not matter
	recent   []string      // leases that are said again, and must not be counted again
	subjects map[string]*pastSubject
}

// pastSubject is one of its subjects.
type pastSubject struct {
	starts []any         // "ms ago, lease" of the newest, as many as are kept
	n      int64         // of rules that only count
	newest time.Duration // likewise
}

func newPast(r *Rule, now time.Time) *past {
	p := &past{rule: r, within: r.longest, subjects: make(map[string]*pastSubject)}
	if r.Algorithm == Calendar {
		p.within = now.Sub(r.around(now).starts[1]) + time.Millisecond // its first one belongs to it
	}
	return p
}

// add takes the next start, which is older than those before it.
func (p *past) add(start Start) {
	if start.Ago < remembered {
		p.recent = append(p.recent, start.Lease)
	}
	if start.Ago >= p.within {
		return
	}
	digest := p.rule.Subject(start.Facts).digest
	s := p.subjects[digest]
	if s == nil {
		s = &pastSubject{newest: start.Ago}
		p.subjects[digest] = s
	}
	s.n++
	if s.n <= p.rule.cap {
		s.starts = append(s.starts, max(start.Ago.Milliseconds(), 0), start.Lease)
	}
}

// parts are the pieces in which a subject is sent.
func (p *past) parts(s *pastSubject) iter.Seq2[int, []any] {
	return func(yield func(int, []any) bool) {
		if p.rule.cap == 0 {
			yield(0, []any{max(s.newest.Milliseconds(), 0), s.n})
			return
		}
		for n, rest := 0, s.starts; len(rest) > 0; n++ {
			size := min(len(rest), piece)
			if !yield(n, rest[:size]) {
				return
			}
			rest = rest[size:]
		}
	}
}

package throttle

import (
	"maps"
	"sync"
	"time"
)

const (
	sampleSpan  = time.Minute
	mostSamples = 30
)

// Samples lets the first of each kind in a minute through, and at most 30 kinds. It is
// safe for concurrent use.
type Samples[Kind comparable] struct {
	now func() time.Time // for elapsed time only

	mu   sync.Mutex
	of   map[Kind]*sampled // those that were let through lately
	lost int               // of kinds that did not fit
}

type sampled struct {
	at      time.Time
	leftOut int
}

// NewSamples lets everything through at first.
func NewSamples[Kind comparable](now func() time.Time) *Samples[Kind] {
	return &Samples[Kind]{now: now, of: make(map[Kind]*sampled)}
}

// Pass says whether one of this kind is let through, and how many were left out since: of
// the kind, and of those that did not fit.
func (s *Samples[Kind]) Pass(kind Kind) (leftOut int, ok bool) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.of[kind]; last != nil && now.Sub(last.at) < sampleSpan {
		last.leftOut++
		return 0, false
	}
	if len(s.of) >= mostSamples {
		s.forget(now)
	}
	if len(s.of) >= mostSamples {
		s.lost++
		return 0, false
	}
	leftOut = s.lost
	if last := s.of[kind]; last != nil {
		leftOut += last.leftOut
	}
	s.of[kind], s.lost = &sampled{at: now}, 0
	return leftOut, true
}

// forget makes room.
func (s *Samples[Kind]) forget(now time.Time) {
	maps.DeleteFunc(s.of, func(_ Kind, old *sampled) bool {
		over := now.Sub(old.at) >= sampleSpan
		if over {
			s.lost += old.leftOut
		}
		return over
	})
}

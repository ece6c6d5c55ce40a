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

// Samples passes the first event of each kind in a minute, for at most 30 kinds. It is safe for concurrent use.
type Samples[Kind comparable] struct {
	now func() time.Time // used only for elapsed time

	mu   sync.Mutex
	of   map[Kind]*sampled // the kinds with an event that was passed lately
	lost int               // number of events left out whose kinds did not fit or were forgotten
}

type sampled struct {
	at      time.Time
	leftOut int
}

// NewSamples returns Samples without a history: the first event of each kind is passed.
func NewSamples[Kind comparable](now func() time.Time) *Samples[Kind] {
	return &Samples[Kind]{now: now, of: make(map[Kind]*sampled)}
}

// Pass reports whether an event of this kind is passed. leftOut is the number of events left out since the previous one of this kind, plus
// the events of kinds that did not fit.
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

// forget removes the kinds whose last event is older than sampleSpan.
func (s *Samples[Kind]) forget(now time.Time) {
	maps.DeleteFunc(s.of, func(_ Kind, old *sampled) bool {
		over := now.Sub(old.at) >= sampleSpan
		if over {
			s.lost += old.leftOut
		}
		return over
	})
}

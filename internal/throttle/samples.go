package throttle

import (
	"maps"
	"sync"
	"time"
)

const (
	sampleSpan = time.Minute
	maxKinds   = 30
)

// Samples selects the events to record: the first event of each kind in a period, for a maximum number of kinds. It is safe for concurrent use.
type Samples[Kind comparable] struct {
	period   time.Duration
	maxKinds int
	now      func() time.Time // used only for elapsed time

	mu           sync.Mutex
	byKind       map[Kind]*kindState // kinds with a selected event; forgetOld removes old ones
	otherLeftOut int                 // number of events left out whose kinds did not fit or were forgotten
}

// kindState contains the time of the last selected event of a kind, and the number of events left out since then.
type kindState struct {
	at      time.Time
	leftOut int
}

// NewSamples returns Samples that select one event of each kind in a minute, for at most 30 kinds. now is used only for elapsed time.
func NewSamples[Kind comparable](now func() time.Time) *Samples[Kind] {
	return newSamples[Kind](sampleSpan, maxKinds, now)
}

func newSamples[Kind comparable](period time.Duration, maxKinds int, now func() time.Time) *Samples[Kind] {
	return &Samples[Kind]{period: period, maxKinds: maxKinds, now: now, byKind: make(map[Kind]*kindState)}
}

// Allow reports whether an event of this kind is selected. leftOut counts the events of this kind that were left out since the previous
// selected event. It also counts the left-out events of kinds that had no room.
func (s *Samples[Kind]) Allow(kind Kind) (leftOut int, ok bool) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.byKind[kind]; last != nil && now.Sub(last.at) < s.period {
		last.leftOut++
		return 0, false
	}
	if len(s.byKind) >= s.maxKinds {
		s.forgetOld(now)
	}
	if len(s.byKind) >= s.maxKinds {
		s.otherLeftOut++
		return 0, false
	}
	leftOut = s.otherLeftOut
	if last := s.byKind[kind]; last != nil {
		leftOut += last.leftOut
	}
	s.byKind[kind], s.otherLeftOut = &kindState{at: now}, 0
	return leftOut, true
}

// forgetOld removes each kind whose last selected event is older than a period. It adds the number of left-out events of this kind to
// otherLeftOut.
func (s *Samples[Kind]) forgetOld(now time.Time) {
	maps.DeleteFunc(s.byKind, func(_ Kind, old *kindState) bool {
		over := now.Sub(old.at) >= s.period
		if over {
			s.otherLeftOut += old.leftOut
		}
		return over
	})
}

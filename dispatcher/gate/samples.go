package gate

import (
	"maps"
	"net/netip"
	"sync"
	"time"
)

// One refusal of a kind is logged within sampleSpan, and of a group at most
// mostSamples. The groups are separate so that guessers do not hide callers whose
// token is known.
const (
	sampleSpan  = time.Minute
	mostSamples = 30
)

type group struct {
	at     At
	reason Reason
}

type sample struct {
	principal string
	from      netip.Prefix
}

type sampled struct {
	at      time.Time
	leftOut int
}

// kinds of one group that were logged lately.
type kinds struct {
	of   map[sample]*sampled
	lost int // those that did not fit
}

type samples struct {
	now func() time.Time

	mu sync.Mutex
	of map[group]*kinds
}

// pass says whether a refusal is logged, and how many of its group were left out since.
func (s *samples) pass(r Refusal) (leftOut int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := group{r.At, r.Reason}
	if s.of[g] == nil {
		s.of[g] = &kinds{of: map[sample]*sampled{}}
	}
	return s.of[g].pass(sample{r.Principal, network(r.From)}, s.now())
}

func (k *kinds) pass(key sample, now time.Time) (leftOut int, ok bool) {
	if last := k.of[key]; last != nil && now.Sub(last.at) < sampleSpan {
		last.leftOut++
		return 0, false
	}
	if len(k.of) >= mostSamples {
		k.forget(now)
	}
	if len(k.of) >= mostSamples {
		k.lost++
		return 0, false
	}
	leftOut = k.lost
	if last := k.of[key]; last != nil {
		leftOut += last.leftOut
	}
	k.of[key], k.lost = &sampled{at: now}, 0
	return leftOut, true
}

// forget makes room.
func (k *kinds) forget(now time.Time) {
	maps.DeleteFunc(k.of, func(_ sample, old *sampled) bool {
		over := now.Sub(old.at) >= sampleSpan
		if over {
			k.lost += old.leftOut
		}
		return over
	})
}

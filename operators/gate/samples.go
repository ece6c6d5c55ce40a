package gate

import (
	"net/netip"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

// Refusals are sampled in groups of their own, so that guessers do not hide callers whose
// token is known.
type group struct {
	at     At
	reason Reason
}

type sample struct {
	principal string
	from      netip.Prefix
}

type samples struct {
	now func() time.Time

	mu sync.Mutex
	of map[group]*throttle.Samples[sample]
}

// pass says whether a refusal is logged, and how many of its group were left out since.
func (s *samples) pass(r Refusal) (leftOut int, ok bool) {
	return s.group(r).Pass(sample{r.Principal, network(r.From)})
}

func (s *samples) group(r Refusal) *throttle.Samples[sample] {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := group{r.At, r.Reason}
	if s.of[g] == nil {
		s.of[g] = throttle.NewSamples[sample](s.now)
	}
	return s.of[g]
}

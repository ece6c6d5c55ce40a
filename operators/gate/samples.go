package gate

import (
	"net/netip"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

// group is the key by which refusals are sampled separately, so that guessers cannot hide clients whose token is known.
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

// pass reports whether a refusal is logged. leftOut is the number of refusals like it that were left out since the last
// logged one, plus the refusals of its group that did not fit into the sample.
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

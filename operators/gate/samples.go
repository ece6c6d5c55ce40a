package gate

import (
	"net/netip"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

// sampleGroup is the key by which refusals are sampled separately, so that guessers cannot hide clients whose token is known.
type sampleGroup struct {
	entryPoint EntryPoint
	reason     Reason
}

type sampleKey struct {
	principal string
	from      netip.Prefix
}

type refusalSamples struct {
	now func() time.Time

	mu      sync.Mutex
	byGroup map[sampleGroup]*throttle.Samples[sampleKey]
}

// shouldLog reports whether a refusal is logged. leftOut is the number of refusals like it that were left out since the last
// logged one, plus the refusals of its group that did not fit into the sample.
func (s *refusalSamples) shouldLog(r Refusal) (leftOut int, ok bool) {
	return s.samplesOf(r).Allow(sampleKey{r.Principal, guesserNetwork(r.From)})
}

func (s *refusalSamples) samplesOf(r Refusal) *throttle.Samples[sampleKey] {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := sampleGroup{r.EntryPoint, r.Reason}
	if s.byGroup[g] == nil {
		s.byGroup[g] = throttle.NewSamples[sampleKey](s.now)
	}
	return s.byGroup[g]
}

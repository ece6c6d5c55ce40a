package gate

import (
	"net/netip"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

// sampleGroup is a group of refusals that is sampled separately, so that refusals of unknown tokens cannot crowd out refusals of known
// tokens.
type sampleGroup struct {
	entryPoint EntryPoint
	reason     Reason
}

// sampleKey identifies a kind of refusals in a group: by principal and network of the sender. isDevice tells a device from an operator with
// the same name.
type sampleKey struct {
	principal string
	isDevice  bool
	from      netip.Prefix
}

// refusalSamples selects the refusals that are logged: the first of each kind in a minute, by group.
type refusalSamples struct {
	now func() time.Time

	mu      sync.Mutex
	byGroup map[sampleGroup]*throttle.Samples[sampleKey]
}

// shouldLog reports whether refusal is logged. leftOut counts refusals that were not logged: those of this kind since the last logged one,
// and those of its group that did not fit into the sample.
func (s *refusalSamples) shouldLog(refusal Refusal) (leftOut int, mustLog bool) {
	return s.samplesForRefusal(refusal).Allow(sampleKey{refusal.Principal, refusal.IsDevice, guesserNetwork(refusal.From)})
}

func (s *refusalSamples) samplesForRefusal(refusal Refusal) *throttle.Samples[sampleKey] {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := sampleGroup{refusal.EntryPoint, refusal.Reason}
	if s.byGroup[g] == nil {
		s.byGroup[g] = throttle.NewSamples[sampleKey](s.now)
	}
	return s.byGroup[g]
}

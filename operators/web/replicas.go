package web

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
)

// A replica sends a heartbeat every HeartbeatEvery. If there is no heartbeat for goneAfter, pages show
// the replica as gone.
const (
	HeartbeatEvery = 5 * time.Second
	goneAfter      = 4 * HeartbeatEvery
)

// Heartbeat holds the data that a replica publishes every few seconds.
type Heartbeat struct {
	Checks map[string]string `json:"checks"`           // state of each dependency: ok, degraded or failed
	Failed []string          `json:"failed,omitempty"` // background passes whose last run failed
	ReapMS int64             `json:"reap_ms"`          // interval of the pass reap
}

// replica is one of the replicas that serve this ledger.
type replica struct {
	replicaRow
	Heartbeat

	Here bool // it is this process
	Gone bool // its heartbeats have stopped
	Late bool // it sends heartbeats, but has not reaped for three of its reap intervals plus goneAfter
	Bad  []dependency
}

// readReplicas returns the replicas that sent a heartbeat within the last hour. The replicas that are not gone come first.
func (s *systemPages) readReplicas(ctx context.Context) ([]replica, error) {
	known, now, err := s.ledger.Replicas(ctx)
	if err != nil {
		return nil, err
	}
	var serving, gone []replica
	for _, k := range known {
		one := replica{replicaRow: k, Here: k.ID == s.system.ID, Gone: now.Sub(k.Seen) > goneAfter}
		if err := json.Unmarshal(k.State, &one.Heartbeat); err != nil {
			return nil, fmt.Errorf("replica %s: %w", k.ID, err)
		}
		every := time.Duration(one.ReapMS) * time.Millisecond
		one.Late = !one.Gone && now.Sub(*cmp.Or(k.Reaped, &k.Started)) > 3*every+goneAfter
		one.Bad = filterUnhealthy(s.system.describePublishedStates(one.Checks))
		if one.Gone {
			gone = append(gone, one)
		} else {
			serving = append(serving, one)
		}
	}
	return append(serving, gone...), nil
}

// mixedVersionsText returns the versions of the replicas that are not gone, as text. If all of them have the same version, the text is
// empty.
func mixedVersionsText(replicas []replica) string {
	found := map[string]bool{}
	for _, r := range replicas {
		if !r.Gone {
			found[r.Version] = true
		}
	}
	if len(found) < 2 {
		return ""
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

// tallyReader holds the counts (denials, conflicts, drift) that the replicas had published at the last read. The counts of a running
// replica only grow, so addTallyGrowth adds the difference between two reads, and a missed read loses nothing. If a replica has run for at most
// a minute at its first read, all its counts are added.
type tallyReader struct {
	lastRead map[string]map[string]meters.Tally // counts by replica and pool
}

// addTallyGrowth adds to target how much the published counts in tallies have grown since the previous read.
func (t *tallyReader) addTallyGrowth(tallies []replicaTallies, target *recentPoolCounts) error {
	current := make(map[string]map[string]meters.Tally, len(tallies))
	for _, one := range tallies {
		counts := map[string]meters.Tally{}
		if err := json.Unmarshal(one.Counts, &counts); err != nil {
			return fmt.Errorf("tallies of replica %s: %w", one.Replica, err)
		}
		current[one.Replica] = counts
		before, found := t.lastRead[one.Replica]
		if !found && one.Uptime > time.Minute {
			continue // the first read of this replica: its counts include earlier times, so only later growth is added
		}
		for pool, now := range counts {
			if more := tallyGrowth(before[pool], now); more != (meters.Tally{}) {
				target.addTally(pool, more)
			}
		}
	}
	t.lastRead = current
	return nil
}

// tallyGrowth returns how much the counts of a pool have grown from before to current. If the pool was deleted and created again, its
// counts have begun at 0 again.
func tallyGrowth(before, current meters.Tally) meters.Tally {
	if current.Denied < before.Denied || current.Conflicts < before.Conflicts || current.Drift < before.Drift {
		before = meters.Tally{}
	}
	return meters.Tally{Denied: current.Denied - before.Denied, Conflicts: current.Conflicts - before.Conflicts, Drift: current.Drift - before.Drift}
}

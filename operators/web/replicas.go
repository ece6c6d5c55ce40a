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

// A replica sends a heartbeat every HeartbeatEvery. Without one for goneAfter it
// is shown as gone.
const (
	HeartbeatEvery = 5 * time.Second
	goneAfter      = 4 * HeartbeatEvery
)

// Heartbeat has the facts that a replica publishes every few seconds.
type Heartbeat struct {
	Checks map[string]string `json:"checks"`           // of the dependencies: ok, degraded or failed
	Failed []string          `json:"failed,omitempty"` // background passes whose last run did
	ReapMS int64             `json:"reap_ms"`          // how often it reaps
}

// replica is one of all that serve this ledger.
type replica struct {
	replicaRow
	Heartbeat

	Here bool // this one
	Gone bool // no heartbeat
	Late bool // it lives, and has not reaped for three times its interval
	Bad  []dependency
}

// replicas are those that sent a heartbeat within the last hour, those that
// serve first.
func (s *systemPages) replicas(ctx context.Context) ([]replica, error) {
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
		one.Bad = broken(s.system.listed(one.Checks))
		if one.Gone {
			gone = append(gone, one)
		} else {
			serving = append(serving, one)
		}
	}
	return append(serving, gone...), nil
}

// versions that are served now, if there is more than one.
func versions(list []replica) string {
	found := map[string]bool{}
	for _, r := range list {
		if !r.Gone {
			found[r.Version] = true
		}
	}
	if len(found) < 2 {
		return ""
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), ", ")
}

// tallied is the last reading of the replicas' counts. They only grow while a
// replica lives, so that no reading counts twice and none that was missed is
// lost. The counts of a replica's first minute are always included.
type tallied struct {
	of map[string]map[string]meters.Tally // by replica and pool
}

// read adds the counts since the reading before to the history.
func (t *tallied) read(list []replicaTallies, to *history) error {
	seen := make(map[string]map[string]meters.Tally, len(list))
	for _, one := range list {
		counts := map[string]meters.Tally{}
		if err := json.Unmarshal(one.Counts, &counts); err != nil {
			return fmt.Errorf("tallies of replica %s: %w", one.Replica, err)
		}
		seen[one.Replica] = counts
		before, known := t.of[one.Replica]
		if !known && one.Running > time.Minute {
			continue // counted before anybody looked
		}
		for pool, now := range counts {
			if more := since(before[pool], now); more != (meters.Tally{}) {
				to.tally(pool, more)
			}
		}
	}
	t.of = seen
	return nil
}

// since is the increase; the counts of a pool that was deleted and made anew begin
// again.
func since(before, now meters.Tally) meters.Tally {
	if now.Denied < before.Denied || now.Conflicts < before.Conflicts || now.Drift < before.Drift {
		before = meters.Tally{}
	}
	return meters.Tally{Denied: now.Denied - before.Denied, Conflicts: now.Conflicts - before.Conflicts, Drift: now.Drift - before.Drift}
}

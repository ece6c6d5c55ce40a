package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// maxReapAge is the maximum accepted age of the reaper's last run.
const maxReapAge = 2 * time.Minute

// liveReplicas holds the running replicas.
type liveReplicas struct {
	list       []store.Replica
	now        time.Time // time of the ledger
	ownVersion string    // version of this program
}

// replicasUnknown is the number of running replicas if the ledger cannot be read.
const replicasUnknown = -1

// checkReplicas checks the replicas whose last heartbeat is at most a minute old. The result count is their number, or replicasUnknown if
// the ledger cannot be read.
func (p Installation) checkReplicas(ctx context.Context, ledger *store.Store) (count int, _ []Finding) {
	if ledger == nil {
		return replicasUnknown, nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	all, now, err := ledger.Replicas(ctx)
	if err != nil { // the check of the schema reports the reason
		return replicasUnknown, []Finding{{"replicas", Unknown, "the ledger could not be read", "repair the schema first"}}
	}
	f := liveReplicas{runningReplicas(all, now), now, p.Version}
	return len(f.list), runChecks(f, []check[liveReplicas]{
		{"replicas", func(f liveReplicas) (State, string) {
			if len(f.list) == 0 {
				return Warning, "no replica was seen in the last minute"
			}
			return OK, fmt.Sprintf("%d, the latest seen %s ago", len(f.list), f.now.Sub(f.lastSeen()).Round(time.Second))
		}, "start one: dispatcher serve"},
		{"versions", func(f liveReplicas) (State, string) {
			versions := f.versions()
			return stateIf(len(versions) > 1 || len(versions) == 1 && versions[0] != f.ownVersion, Warning),
				"replicas: " + strings.Join(versions, ", ") + "; this program: " + f.ownVersion
		}, "bring all replicas, and this program, to one version"},
		{"reaper", func(f liveReplicas) (State, string) {
			last, hasReaped := f.lastReaped()
			if !hasReaped {
				return stateIf(len(f.list) > 0 && f.now.Sub(f.list[0].Started) > maxReapAge, Warning), "no pass yet"
			}
			return stateIf(f.now.Sub(last) > maxReapAge, Warning), fmt.Sprintf("its last pass ended %s ago", f.now.Sub(last).Round(time.Second))
		}, "`background pass failed` in the logs of the replicas names the cause"},
	})
}

// lastSeen returns the time of the latest heartbeat of the replicas.
func (f liveReplicas) lastSeen() time.Time {
	return slices.MaxFunc(f.list, func(a, b store.Replica) int { return a.Seen.Compare(b.Seen) }).Seen
}

// versions returns the different versions of the replicas, sorted.
func (f liveReplicas) versions() []string {
	var versions []string
	for _, r := range f.list {
		versions = append(versions, r.Version)
	}
	slices.Sort(versions)
	return slices.Compact(versions)
}

// lastReaped returns when the reaper of any replica last ended a run. hasReaped is false if none has.
func (f liveReplicas) lastReaped() (last time.Time, hasReaped bool) {
	for _, r := range f.list {
		if r.Reaped != nil && r.Reaped.After(last) {
			last, hasReaped = *r.Reaped, true
		}
	}
	return last, hasReaped
}

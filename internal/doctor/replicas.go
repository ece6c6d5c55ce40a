package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// reapedLately is the maximum accepted age of the reaper's last run.
const reapedLately = 2 * time.Minute

// fleet holds the running replicas.
type fleet struct {
	list []store.Replica
	now  time.Time // time of the ledger
	own  string    // version of this program
}

// notKnown is the number of running replicas if the ledger cannot be read.
const notKnown = -1

// replicas checks the replicas whose last heartbeat is at most a minute old, and returns their number.
func (p Patient) replicas(ctx context.Context, ledger *store.Store) (seen int, _ []Finding) {
	if ledger == nil {
		return notKnown, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all, now, err := ledger.Replicas(ctx)
	if err != nil { // the check of the schema reports the reason
		return notKnown, []Finding{{"replicas", Unknown, "the ledger does not tell", "mend the schema first"}}
	}
	f := fleet{running(all, now), now, p.Version}
	return len(f.list), through(f, []check[fleet]{
		{"replicas", func(f fleet) (State, string) {
			if len(f.list) == 0 {
				return Warning, "none was seen in the last minute"
			}
			return OK, fmt.Sprintf("%d, the latest seen %s ago", len(f.list), f.now.Sub(f.latest()).Round(time.Second))
		}, "start one: dispatcher serve"},
		{"versions", func(f fleet) (State, string) {
			versions := f.versions()
			return unless(len(versions) > 1 || len(versions) == 1 && versions[0] != f.own, Warning),
				"replicas: " + strings.Join(versions, ", ") + "; this program: " + f.own
		}, "bring all replicas, and this program, to one version"},
		{"reaper", func(f fleet) (State, string) {
			last, known := f.reaped()
			if !known {
				return unless(len(f.list) > 0 && f.now.Sub(f.list[0].Started) > reapedLately, Warning), "no pass yet"
			}
			return unless(f.now.Sub(last) > reapedLately, Warning), fmt.Sprintf("its last pass ended %s ago", f.now.Sub(last).Round(time.Second))
		}, "`background pass failed` in the logs of the replicas names the cause"},
	})
}

func (f fleet) latest() time.Time {
	return slices.MaxFunc(f.list, func(a, b store.Replica) int { return a.Seen.Compare(b.Seen) }).Seen
}

func (f fleet) versions() []string {
	var versions []string
	for _, r := range f.list {
		versions = append(versions, r.Version)
	}
	slices.Sort(versions)
	return slices.Compact(versions)
}

// reaped returns when the reaper of any replica last ended a run.
func (f fleet) reaped() (last time.Time, known bool) {
	for _, r := range f.list {
		if r.Reaped != nil && r.Reaped.After(last) {
			last, known = *r.Reaped, true
		}
	}
	return last, known
}

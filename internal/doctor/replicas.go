package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	maxHeartbeatAge = time.Minute     // a replica whose last heartbeat is older does not run
	maxReapAge      = 2 * time.Minute // maximum accepted age of the reaper's last run
)

// replicasUnknown stands for the number of running replicas if the ledger cannot be read.
const replicasUnknown = -1

// checkReplicas checks the running replicas. ownVersion is the version of this program.
func (d postgresState) checkReplicas(ownVersion string) []Finding {
	running, reaped, reaperIsLate := "no replica was seen in the last minute", "no pass yet", false
	var lastSeen, lastReaped time.Time
	var versions []string
	for _, r := range d.replicas {
		versions = append(versions, r.Version)
		if r.Seen.After(lastSeen) {
			lastSeen = r.Seen
		}
		if r.Reaped != nil && r.Reaped.After(lastReaped) {
			lastReaped = *r.Reaped
		}
	}
	if len(d.replicas) > 0 {
		running = fmt.Sprintf("%d, the latest seen %s ago", len(d.replicas), d.now.Sub(lastSeen).Round(time.Second))
		reaperIsLate = d.now.Sub(d.replicas[0].Started) > maxReapAge
	}
	if !lastReaped.IsZero() {
		age := d.now.Sub(lastReaped)
		reaped, reaperIsLate = fmt.Sprintf("its last pass ended %s ago", age.Round(time.Second)), age > maxReapAge
	}
	slices.Sort(versions)
	versions = slices.Compact(versions)
	isMixed := len(versions) > 1 || len(versions) == 1 && versions[0] != ownVersion
	return []Finding{
		newFinding("replicas", len(d.replicas) == 0, Warning, running, "start one: dispatcher serve"),
		newFinding("versions", isMixed, Warning, "replicas: "+strings.Join(versions, ", ")+"; this program: "+ownVersion, "bring all replicas, and this program, to one version"),
		newFinding("reaper", reaperIsLate, Warning, reaped, "`background pass failed` in the logs of the replicas names the cause"),
	}
}

package decision

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// Each reason with which a device can be refused must have a row in the table of reasons, with the time of the next report.
func TestEveryReasonHasARow(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../devices/reply.go")
	must.Succeed(t, err)
	reasons := regexp.MustCompile(`(?m)^\tReason\w+ +Reason = "(\w+)"`).FindAllStringSubmatch(string(text), -1)
	if len(reasons) < 10 {
		t.Fatalf("found only %q", reasons)
	}
	for _, reason := range reasons {
		if row := WaitRuleFor(devices.Reason(reason[1])); reason[1] != "granted" && (string(row.Reason) != reason[1] || row.delay == nil && row.fixedDelay == 0) {
			t.Errorf("%s: its row is %+v", reason[1], row)
		}
	}
}

// A report may be parked exactly if its reason is one of those that docs/protocol.md lists.
func TestTheParkedReasonsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/protocol.md")
	must.Succeed(t, err)
	_, list, _ := strings.Cut(string(text), "A report is parked if the reason of its answer passes by itself:")
	list, _, _ = strings.Cut(list, ". Other reasons are answered at once.")
	parked := make(map[devices.Reason]bool)
	for _, reason := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(list, -1) {
		parked[devices.Reason(reason[1])] = true
	}
	if len(parked) == 0 {
		t.Fatal("the contract names none")
	}
	for _, row := range waitRules() {
		if row.Reason == devices.ReasonCallersFull { // only callers get this reason, and the contract is about devices
			continue
		}
		if row.MayPark != parked[row.Reason] {
			t.Errorf("%s: parks is %t, and the contract says %t", row.Reason, row.MayPark, parked[row.Reason])
		}
	}
}

// A device has several tasks that are refused for different reasons. The reply must name the reason that is nearest to a grant.
func TestTheNearestReasonIsTold(t *testing.T) {
	t.Parallel()
	in := func(pool string, change func(*store.Candidate)) store.Candidate {
		return openCandidate(7, change, func(c *store.Candidate) { c.Pool = pool })
	}
	unchanged := func(*store.Candidate) {}
	farthest := []struct {
		reason devices.Reason
		task   store.Candidate
	}{
		{devices.ReasonWindow, in("a", notBeforeIn(time.Hour))},
		{devices.ReasonPaused, in("a", inPausedBatch)},
		{devices.ReasonLimited, in("a", func(c *store.Candidate) { c.Task = 9 })},
		{devices.ReasonFull, in("full", unchanged)},
		{devices.ReasonUnavailable, in("unsure", unchanged)},
	}
	for i, nearer := range farthest {
		for _, other := range farthest[:i+1] {
			for _, tasks := range [][]store.Candidate{{nearer.task, other.task}, {other.task, nearer.task}} {
				s := acceptingSituation(tasks...)
				s.Now, s.Obstacles = testMoment(), map[int64]Obstacle{9: {Code: CodeLimited}}
				s.FullPools, s.UnreachablePools = map[string]bool{"full": true}, map[string]bool{"unsure": true}
				if got := Decide(s); got.Reason != nearer.reason {
					t.Errorf("%s and %s: told %s", nearer.reason, other.reason, got.Reason)
				}
			}
		}
	}
}

package web_test

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// chartValues returns the values of a series (name: held or granted) in the chart of pool p for the last hour.
func (b *testReplica) chartValues(name string) (values []int) {
	b.Helper()
	_, text, _ := b.getPage("/pools/p")
	found := regexp.MustCompile(`data-` + name + `="([0-9 ]+)"`).FindStringSubmatch(text)
	if found == nil {
		b.Fatalf("the page has no chart: %s", text)
	}
	for _, digits := range regexp.MustCompile(`[0-9]+`).FindAllString(found[1], -1) {
		var n int
		_, _ = fmt.Sscan(digits, &n)
		values = append(values, n)
	}
	return values
}

func sumOf(list []int) (sum int) {
	for _, n := range list {
		sum += n
	}
	return sum
}

// TestLaterReplicaShowsTheSameHour checks the chart of the last hour at a replica that started later. It must equal the chart of a replica
// that ran all the time.
func TestLaterReplicaShowsTheSameHour(t *testing.T) {
	t.Parallel()
	first := startOnServers(t)
	first.createPool("p", 5, deviceIDs(8)...)
	first.alterLedger(`UPDATE pools SET created_at = created_at - interval '50 minutes'`)
	var last rig.Grant
	for i := range 4 {
		last = first.ReportUntilGranted(fmt.Sprintf("d-%d", i))
		// The lock keeps the replica from counting events between the two updates. An event that is counted in between would keep its minute.
		first.alterLedger(`SELECT event FROM minutes_counted FOR UPDATE;
			UPDATE pool_minutes SET minute = minute - 10; UPDATE events SET at = at - interval '10 minutes'`)
	}
	first.sendReport("d-3", map[string]any{"accept": false, "results": []map[string]any{{"task": last.ID, "token": last.Token, "status": "succeeded"}}})
	second := startReplica(t, first.Stores)
	held := second.chartValues("held")
	if n := len(held); n < 50 || n > 52 || slices.Max(held) != 4 || held[n-1] != 3 || held[n-15] != 3 || held[n-25] != 2 {
		t.Errorf("held: %v", held)
	}
	if granted := second.chartValues("granted"); sumOf(granted) != 4 {
		t.Errorf("granted: %v", granted)
	}
	first.Await("the same chart", func() bool { return slices.Equal(first.chartValues("held"), second.chartValues("held")) })
	_, text, _ := second.getPage("/")
	expectContains(t, text, `between 0 and 4 slots held recently, now 3 of 5`)
}

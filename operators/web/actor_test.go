package web_test

import (
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestActorsOfOneNameAreToldApart checks the events of a device that has the name of a part of the dispatcher. The page of the log and its
// CSV must show which of the two acted.
func TestActorsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		startEmbedded(t).expectTwoReapers()
	})
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		b := startOnServers(t)
		b.expectTwoReapers()
	})
}

// expectTwoReapers lets a device named reaper lose its grant to the pass reaper, and checks how the log shows both.
func (b *testReplica) expectTwoReapers() {
	b.Helper()
	b.createPool("p", 1, "reaper")
	b.ReportUntilGranted("reaper")
	clock, err := b.store.LeaseClock(b.Context())
	b.Must(err)
	cutoffs := store.LapseCutoffs{}
	for _, length := range clock.Lengths {
		cutoffs[length] = time.Now().Add(24 * time.Hour) // so that the lease has ended
	}
	_, err = b.store.Reap(b.Context(), cutoffs, 1, func(store.EndedGrantFacts) store.NextTaskState { return store.NextTaskState{State: store.TimedOut} })
	b.Must(err)
	actors := regexp.MustCompile(`<a href="(/activity\?actor_kind=[^"]*)">([^<]*)</a>`)
	_, text, _ := b.getPage("/activity?actor_kind=everybody")
	links := map[string]string{}
	for _, match := range actors.FindAllStringSubmatch(text, -1) {
		links[match[2]] = html.UnescapeString(match[1])
	}
	for actor, want := range map[string][]string{"device reaper": {"task.granted"}, "program reaper": {"task.lapsed"}, "operator bootstrap": {"batch.created", "pool.created"}} {
		_, text, _ := b.getPage(links[actor])
		var kinds []string
		for _, match := range regexp.MustCompile(`/activity\?kind=([a-z._]+)"`).FindAllStringSubmatch(text, -1) {
			kinds = append(kinds, match[1])
		}
		if !slices.Equal(kinds, want) {
			b.Errorf("the link of %s, %s, shows %q, want %q", actor, links[actor], kinds, want)
		}
	}
	_, text, _ = b.getPage("/activity.csv?actor=reaper&actor_kind=program")
	if lines := strings.Split(strings.TrimSpace(text), "\n"); len(lines) != 2 || !strings.HasSuffix(lines[0], ",actor_kind,batch_name") || !strings.HasSuffix(lines[1], ",program,b") {
		b.Errorf("CSV: %q", text)
	}
}

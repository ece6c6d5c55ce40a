package web_test

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/web"
	"github.com/fleetslots/dispatcher/store"
)

// recordHeartbeat stores the heartbeat of a replica with these data in the ledger.
func (b *testReplica) recordHeartbeat(id, version string, running time.Duration, reaped *time.Duration, v web.Heartbeat, counts map[string]meters.Tally) {
	b.Helper()
	state, _ := json.Marshal(v)
	tallies, _ := json.Marshal(counts)
	err := b.store.RecordHeartbeat(b.Context(), store.Heartbeat{ID: id, Host: id + ".example", Address: ":8080", Version: version, Uptime: running, SinceReap: reaped, State: state, Tallies: tallies})
	b.Must(err)
}

// replicaRow returns the table row of the replica with this id from the text of the page.
func replicaRow(text, id string) string {
	_, after, _ := strings.Cut(text, `id="replica-`+id+`"`)
	found, _, _ := strings.Cut(after, "</tr>")
	return found
}

// TestSystemNamesTheLedger checks the name of the ledger on the system page: the program dev has SQLite instead of
// Postgres.
func TestSystemNamesTheLedger(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{"dev": "<dt>SQLite</dt>", "production": "<dt>Postgres</dt>"} {
		b := startEmbedded(t, func(o *web.Options) {
			o.System.Mode = mode
			o.System.Checks = func(context.Context) []api.Dependency { return []api.Dependency{{Name: "postgres", State: "ok"}} }
		})
		_, text, _ := b.getPage("/system")
		expectContains(t, text, want)
	}
}

// TestSystemSaysWhatIsWrongWithAServer checks the system page: a server that does not answer has its address, its error and the remedy, and a
// server that is not used is off.
func TestSystemSaysWhatIsWrongWithAServer(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(o *web.Options) {
		o.System.Mode = "production"
		o.System.Checks = func(context.Context) []api.Dependency {
			return []api.Dependency{
				{Name: "mqtt", State: "ok", Off: true},
				{Name: "postgres", State: "ok", Address: "db.example:5432"},
				{Name: "redis", State: "degraded", Since: outageBegan, Address: "cache.example:6379", Error: "dial tcp 192.0.2.7:6379: connection refused"},
			}
		}
	})
	tab := openTab(t)
	tab.open(b.URL + "/system")
	const linesJS = `[...[...document.querySelectorAll("#system h2")].find((h) => h.textContent === "Dependencies").nextElementSibling.children].map((e) => [...e.children].map((c) => c.textContent).join("|")).join(";")`
	if shown := evalJS[string](tab, linesJS); !regexp.MustCompile(`^The MQTT broker\|off;Postgres\|✓ ok db\.example:5432;Redis\|degraded since [^;|]* cache\.example:6379$`).MatchString(shown) {
		t.Errorf("shown %q", shown)
	}
	if said := tab.elementText("#system .problem"); said != "Redis does not answer: dial tcp 192.0.2.7:6379: connection refused. Results are recorded, but nothing new is granted. Check whether it runs and whether this replica reaches it: dispatcher doctor." {
		t.Errorf("the page says %q", said)
	}
	tab.checkScreen("system-degraded")
}

// TestReplicasAreShown checks the system page: at every replica it shows all replicas with their dependencies, and
// which replicas are gone.
func TestReplicasAreShown(t *testing.T) {
	t.Parallel()
	b := startOnServers(t, func(o *web.Options) { o.System.ID = "here" })
	other := startReplica(t, b.Stores, func(o *web.Options) { o.System.ID = "there" })
	second, longAgo := time.Second, 2*time.Minute
	ok := map[string]string{"postgres": "ok", "redis": "ok"}
	b.recordHeartbeat("here", "1.0", 3*time.Minute, &second, web.Heartbeat{Checks: ok, ReapMS: 5000}, nil)
	b.recordHeartbeat("there", "1.1", 3*time.Minute, &longAgo, web.Heartbeat{Checks: map[string]string{"postgres": "ok", "redis": "degraded"}, Failed: []string{"reconcile"}, ReapMS: 5000}, nil)
	b.recordHeartbeat("young", "1.1", time.Second, nil, web.Heartbeat{Checks: ok, ReapMS: 5000}, nil)
	for name, at := range map[string]*testReplica{"here": b, "there": other} {
		_, text, _ := at.getPage("/system")
		expectContains(t, text, "Replicas of different versions serve: 1.0, 1.1")
		expectContains(t, replicaRow(text, "here"), "here.example", ":8080", "✓ ok")
		expectContains(t, replicaRow(text, "there"), "Redis degraded", "reconcile failed", "late")
		expectContains(t, replicaRow(text, "young"), "none yet", "✓ ok")
		for _, one := range []string{"here", "there"} {
			if own := strings.Contains(replicaRow(text, one), "this one"); own != (one == name) {
				t.Errorf("at %s, %s says that it is this one: %v", name, one, own)
			}
		}
		if strings.Contains(replicaRow(text, "here"), "late") || strings.Contains(replicaRow(text, "young"), "late") || strings.Contains(text, "gone</span>") {
			t.Errorf("at %s: %s", name, text)
		}
	}
	// One replica (young) ends by itself, and another one is killed.
	b.Must(b.store.RemoveReplica(t.Context(), "young"))
	b.alterLedger(`UPDATE replicas SET seen_at = now() - interval '21 seconds' WHERE id = 'there'`)
	_, text, _ := b.getPage("/system")
	if replicaRow(text, "young") != "" || !strings.Contains(replicaRow(text, "there"), "gone</span>") || strings.Contains(replicaRow(text, "there"), "late") {
		t.Errorf("after one ended and one was killed: %s", text)
	}
	if strings.Contains(text, "different versions") {
		t.Error("the version of a replica that is gone counts")
	}
}

// TestRefusalsAreTallied checks that a replica counts the reports that it refuses, so that pages can show the
// number.
func TestRefusalsAreTallied(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 1, "d-1", "d-2")
	b.ReportUntilGranted("d-1")
	for i := range 2 {
		if g := b.sendReport("d-2", map[string]any{"id": itoa(int64(i))}); g != nil {
			t.Fatalf("granted %+v", g)
		}
	}
	if got := b.Dispatcher.Tallies()["p"]; got.Denied < 2 || got.Conflicts+got.Drift > 0 {
		t.Errorf("tallied %+v", got)
	}
}

// TestTroubleOfOtherReplicasIsShown checks the pages of one replica: they also show the refusals and faults that
// other replicas counted.
func TestTroubleOfOtherReplicasIsShown(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	b.createPool("q", 3)
	b.recordHeartbeat("there", "1.0", time.Second, nil, web.Heartbeat{}, map[string]meters.Tally{"p": {Denied: 41, Conflicts: 2, Drift: 3}, "q": {Denied: 1}})
	tab := openTab(t)
	tab.open(b.URL + "/")
	tab.waitForJS(`[...document.querySelectorAll("#pool-p .tag[title]")].map(e => e.textContent).join() === "2 conflicts,3 slots repaired"`)
	tab.waitForJS(`document.querySelector("#pool-q .tag.bad") === null`)
	tab.open(b.URL + "/pools/p")
	tab.waitForJS(`[...document.querySelectorAll("#pool-head .figures > div")].map(e => e.textContent.trim()).filter(e => /^(conflicts|slots repaired)/.test(e)).join() === "conflicts2,slots repaired3"`)
	tab.waitForJS(`document.querySelector("#chart .denied title").textContent === "41 refused in a minute"`)
	tab.waitForJS(`[...document.querySelectorAll("#pool-head dt")].some(e => e.textContent === "refused/min" && e.nextElementSibling.textContent === "41")`)
	tab.checkScreen("pool-trouble")
}

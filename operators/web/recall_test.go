package web_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators/web"
)

// TestLaterReplicaShowsTheSameHour checks the chart of the last hour at a replica that started later. It must equal the chart of a replica
// that ran all the time; a difference of one point in time is allowed.
func TestLaterReplicaShowsTheSameHour(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T, ...func(*web.Options)) (*testReplica, func()){
		"postgres": func(t *testing.T, changes ...func(*web.Options)) (*testReplica, func()) {
			t.Helper()
			b, dsn := startOnServers(t, changes...)
			return b, func() { b.alterLedger(dsn, `UPDATE events SET at = at - interval '5 seconds'`) }
		},
		"sqlite": func(t *testing.T, changes ...func(*web.Options)) (*testReplica, func()) {
			t.Helper()
			path := filepath.Join(t.TempDir(), "ledger.db")
			b := startReplica(t, backends.OpenSQLite(t, path), servers.InProcessRedis(t), changes...)
			db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return b, func() {
				if _, err := db.ExecContext(t.Context(), `UPDATE events SET at = at - 5000`); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expectSameHistory(t, begin)
		})
	}
}

func expectSameHistory(t *testing.T, startFirst func(*testing.T, ...func(*web.Options)) (*testReplica, func())) {
	t.Helper()
	var clock atomic.Int64 // ms
	begun := time.Now()
	clock.Store(begun.UnixMilli())
	at := func(o *web.Options) { o.Now = func() time.Time { return time.UnixMilli(clock.Load()) } }
	first, pass := startFirst(t, at)
	first.createPool("p", 5, deviceIDs(8)...)
	// The function step lets five seconds pass, both for the log and for the replica that has been running all the
	// time.
	step := func() {
		seen, _, _, _ := first.web.ChartPoints("p")
		pass()
		clock.Add(5000)
		first.waitUntil("a point", func() bool {
			now, _, _, _ := first.web.ChartPoints("p")
			return len(now) > len(seen)
		})
	}
	grants := map[int]grantedTask{}
	for i := range 24 {
		switch {
		case i%3 == 0 && i < 15:
			grants[i] = first.reportUntilGranted(fmt.Sprintf("d-%d", i/3))
		case i%6 == 1 && i > 6 && i < 20:
			g := grants[i-7]
			first.sendReport(fmt.Sprintf("d-%d", (i-7)/3), map[string]any{"accept": false, "results": []map[string]any{{"task": g.ID, "token": g.Token, "status": "succeeded"}}})
		case i == 16:
			first.callAPI("PATCH", "/v1/pools/p", map[string]any{"capacity": 9}, nil)
		}
		step()
	}
	second := startReplica(t, first.store.Store, first.redis, at)
	second.waitUntil("the hour", func() bool {
		at, _, _, _ := second.web.ChartPoints("p")
		return len(at) > 20
	})
	ran, held, granted, _ := first.web.ChartPoints("p")
	later, recalled, regranted, _ := second.web.ChartPoints("p")
	if len(ran) < 24 || slices.Max(held) < 3 || held[len(held)-1] == slices.Max(held) {
		t.Fatalf("the first saw %d points: %v", len(ran), held)
	}
	shown, off := 0, 2+int(time.Since(begun)/(5*time.Second)) // points in the chart and their tolerance; for the log, the duration of the test counts as well
	for i := range ran {
		n, _ := slices.BinarySearch(later, ran[i]-2500)
		if n == len(later) || n < off {
			continue // near the time when the pool was created
		}
		shown++
		if near := recalled[max(0, n-off):min(len(recalled), n+off)]; !slices.Contains(near, held[i]) {
			t.Errorf("%d s ago the first saw %d held, the second %v", (ran[len(ran)-1]-ran[i])/1000, held[i], near)
		}
	}
	if a, b := total(granted), total(regranted); a != b || a != 5 || shown < 8 {
		t.Errorf("granted %d, recalled %d; %d points in common", a, b, shown)
	}
	_, text, _ := second.getPage("/pools/p")
	expectContains(t, text, `granted in 5 s`, `V`)
}

func total(list []int) (sum int) {
	for _, n := range list {
		sum += n
	}
	return sum
}

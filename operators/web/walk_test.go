package web_test

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fleetslots/dispatcher/operators"
)

// walkSize is the number of pools and of tasks of the ledger in TestWalk.
type walkSize struct {
	pools, tasksPerPool    int // number of pools, and of tasks per pool
	stuckTasks, nightTasks int // number of tasks in the pool that starts nothing, and in the batch of the last night
}

// TestWalk starts from the first page of the dashboard. Within three clicks it must find the answers to five
// questions of operators:
//   - why nothing starts in a pool;
//   - where a device is;
//   - which area fails;
//   - which tasks ended in the last night;
//   - who holds a slot and who held it before.
//
// The words of the pages are compared with the ledger. This command uses the full size of 3,000 pools and 1,000,000
// tasks, and prints the time of each page:
//
//	SIZES=1 go test ./operators/web -run 'TestWalk$' -v -timeout 30m
//
//nolint:tparallel // its parts are measured
func TestWalk(t *testing.T) {
	t.Parallel()
	size := walkSize{pools: 40, tasksPerPool: 40, stuckTasks: 100, nightTasks: 350}
	measured := os.Getenv("SIZES") != ""
	if measured {
		size = walkSize{pools: 3000, tasksPerPool: 330, stuckTasks: 1000, nightTasks: 5000}
	}
	b := startOnServers(t)
	f := &walkFleet{testReplica: b, db: b.OpenDB(t)}
	f.insertPools(size)
	f.createStuckPool(size.stuckTasks)
	f.passSlot()
	visited := map[string]bool{}
	for name, question := range map[string]func(*clickingVisitor){
		"why does nothing start here": f.explainStuckPool, "where is that device": f.findDevice, "which area fails": f.findFailingArea,
		"what did last night bring": f.readNightBatch, "who holds slot 17, and who held it": f.expectHolderLinks,
	} {
		t.Run(name, func(t *testing.T) {
			w := &clickingVisitor{tab: openTab(t), onVisit: func(path string) { visited[path] = true }}
			w.open(b.URL + "/")
			w.logArrival()
			question(w)
			if w.clicks > 3 {
				t.Errorf("%d clicks", w.clicks)
			}
		})
	}
	if !measured {
		return
	}
	for path := range visited {
		shortest, size := b.measurePage(path)
		for range 8 {
			took, _ := b.measurePage(path)
			shortest = min(shortest, took)
		}
		t.Logf("%s: %d ms, the shortest of nine; %d kB", path, shortest.Milliseconds(), size/1024)
	}
}

// clickingVisitor is a visitor of the dashboard who counts clicks. Entering a text and sending it counts as one
// click.
type clickingVisitor struct {
	*tab

	clicks  int
	onVisit func(path string)
}

// clickLink clicks an element that opens another page.
func (w *clickingVisitor) clickLink(selector string) {
	w.Helper()
	w.leavePage(func() { w.click(selector) })
}

// submitFields fills in form fields (pairs of selector and text) and sends the form of the last field with the
// enter key.
func (w *clickingVisitor) submitFields(pairs ...string) {
	w.Helper()
	w.leavePage(func() {
		for i := 0; i < len(pairs); i += 2 {
			field := chromedp.CSS(pairs[i])
			if i+2 == len(pairs) {
				w.runActions(chromedp.SendKeys(field, pairs[i+1]+kb.Enter))
				break
			}
			evalJS[bool](w.tab, fmt.Sprintf("(document.querySelector(%q).value = %q, true)", pairs[i], pairs[i+1]))
		}
	})
}

func (w *clickingVisitor) leavePage(act func()) {
	w.Helper()
	w.clicks++
	evalJS[bool](w.tab, `window.left = true`)
	act()
	w.waitForJS(`!window.left && document.readyState === "complete" && document.querySelector("h1")`)
	w.logArrival()
}

// logArrival logs two durations of the page: the time at the server, and the time until a visitor could use it.
func (w *clickingVisitor) logArrival() {
	w.Helper()
	w.waitForJS(`performance.getEntriesByType("navigation")[0].domInteractive`)
	w.onVisit(evalJS[string](w.tab, "location.pathname + location.search"))
	w.Log(evalJS[string](w.tab, `(() => { const t = performance.getEntriesByType("navigation")[0];
		return decodeURIComponent(location.pathname + location.search) + ": " + Math.round(t.responseStart - t.requestStart) + " ms at the server, " + Math.round(t.domInteractive) + " ms in all"; })()`))
}

// walkFleet is the replica and the ledger that TestWalk uses.
type walkFleet struct {
	*testReplica

	db *sql.DB
}

func (f *walkFleet) exec(statement string, args ...any) {
	f.Helper()
	if _, err := f.db.ExecContext(f.Context(), statement, args...); err != nil {
		f.Fatalf("%s: %v", statement, err)
	}
}

func (f *walkFleet) queryCount(query string, args ...any) (n int64) {
	f.Helper()
	if err := f.db.QueryRowContext(f.Context(), query, args...).Scan(&n); err != nil {
		f.Fatalf("%s: %v", query, err)
	}
	return n
}

// insertPools creates pools with one batch each. Half of the tasks of each batch ended in the night, and some of
// these failed. Every seventh pool is paused. Every fifth device of a pool has never reported. The first seventeen
// slots of pool p-0018 are held. The last batch is the batch of the night, which TestWalk reads later.
func (f *walkFleet) insertPools(s walkSize) {
	f.Helper()
	const device = `'d-' || right(b.pool, 4) || '-' || lpad(n::text, 5, '0')`
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO pools (name, capacity, lease_ms, paused, paused_by, paused_at, pause_reason, created_at, updated_at)
			SELECT 'p-' || lpad(n::text, 4, '0'), 20, 3600000, n %% 7 = 0, CASE WHEN n %% 7 = 0 THEN 'ann' ELSE '' END, CASE WHEN n %% 7 = 0 THEN now() END,
			CASE WHEN n %% 7 = 0 THEN 'it is repaired' ELSE '' END, now() - interval '2 days', now() FROM generate_series(1, %d) n`, s.pools),
		fmt.Sprintf(`INSERT INTO batches (name, pool, kind, created_at, total) SELECT 'tests of ' || name, name, 'k', now() - interval '12 hours', %d FROM pools ORDER BY name`, s.tasksPerPool),
		fmt.Sprintf(`INSERT INTO batches (name, pool, kind, created_at, total, max_attempts) VALUES ('nightly firmware', 'p-0020', 'update', now() - interval '3 days', %d, 1)`, s.nightTasks),
		`INSERT INTO tasks (batch, pool, device) SELECT b.id, b.pool, ` + device + ` FROM batches b, generate_series(1, b.total) n ORDER BY b.id, n`,
		`UPDATE tasks SET state = CASE WHEN id % 23 = 0 THEN 'failed' ELSE 'succeeded' END, error = CASE WHEN id % 23 = 0 THEN 'no route to host' ELSE '' END,
			attempts = 1, finished_at = now() - interval '1 hour' * (1 + id % 10), output = json_build_object('down', 80 + id % 20) WHERE id % 2 = 0`,
		// The batch of the night ran for three nights. In the last night, its tasks in area 3 failed.
		`UPDATE tasks SET state = 'succeeded', error = '', attempts = 1, output = json_build_object('took_s', 30 + id % 7),
			finished_at = now() - interval '1 hour' * (2 + id % 5) - interval '1 day' * (id % 3) WHERE batch = (SELECT max(id) FROM batches)`,
		`UPDATE tasks SET state = 'failed', error = CASE WHEN id % 2 = 0 THEN 'checksum mismatch' ELSE 'no route to host' END WHERE batch = (SELECT max(id) FROM batches) AND right(device, 5)::int % 7 = 3 AND id % 3 = 0`,
		`INSERT INTO devices (id, tags, created_at, last_seen, quiet_until, blocked) SELECT device, jsonb_build_object('area', 'area-' || right(device, 5)::int % 7), now() - interval '9 days',
			CASE WHEN min(id) % 11 > 0 THEN now() END, CASE WHEN min(id) % 11 > 0 THEN now() END, min(id) % 97 = 0 FROM tasks WHERE id % 5 > 0 OR batch = (SELECT max(id) FROM batches) GROUP BY device`,
		`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
			SELECT id, batch, pool, n, device, nextval('grant_token'), id || '.1.x', 1, now() - interval '5 minutes', now() + interval '1 hour', now() + interval '2 hours', 3600000
			FROM (SELECT *, row_number() OVER (PARTITION BY pool ORDER BY id) - 1 AS n FROM tasks WHERE state = 'pending' AND pool <> 'p-0020') AS numbered WHERE n < CASE WHEN pool = 'p-0018' THEN 17 ELSE 5 END`,
		`INSERT INTO events (at, kind, actor, pool, task, batch, device, detail) SELECT finished_at, 'task.' || state, device, pool, id, batch, device, error FROM tasks WHERE state <> 'pending' ORDER BY finished_at`,
		`INSERT INTO events (at, kind, actor, pool, task, batch, device, token, detail) SELECT granted_at, 'task.granted', device, pool, task, batch, device, token, 'slot=' || slot FROM grants`,
	} {
		f.exec(statement)
	}
	f.Await("counts that are folded", func() bool { return f.queryCount(`SELECT count(*) FROM batch_deltas`) == 0 })
	f.exec(`VACUUM ANALYZE`)
}

// createStuckPool creates a pool in which no task starts. The tasks wait for four different reasons.
func (f *walkFleet) createStuckPool(tasks int) {
	f.Helper()
	f.Do("PUT", "/v1/pools/stuck-east", map[string]any{"capacity": 20, "limits": []map[string]any{{"name": "account", "per": "tags.account", "algorithm": "sliding", "windows": []map[string]any{{"max": 1, "per_ms": 86_400_000}}}}}, nil)
	f.exec(`INSERT INTO devices (id, tags, blocked, created_at, last_seen, quiet_until)
		SELECT 'east-' || kind || '-' || lpad(n::text, 4, '0'), jsonb_build_object('account', 'a-' || n % 3), kind = 'blocked', now(), now(), now()
		FROM (VALUES ('ran'), ('limited'), ('blocked'), ('shut')) AS kinds (kind), generate_series(0, $1) n`, tasks)
	names := func(kind string, n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("east-%s-%04d", kind, i))
		}
		return list
	}
	f.Do("POST", "/v1/batches", map[string]any{"name": "ran", "pool": "stuck-east", "devices": names("ran", 3)}, nil)
	for _, name := range names("ran", 3) { // the only starts of these accounts on this day
		g := f.ReportUntilGranted(name)
		f.sendReport(name, map[string]any{"accept": false, "results": []map[string]any{{"task": g.ID, "token": g.Token, "status": "succeeded"}}})
	}
	f.Do("POST", "/v1/batches", map[string]any{"name": "stuck", "pool": "stuck-east", "devices": append(append(names("unknown", tasks*4/10), names("limited", tasks*3/10)...), names("blocked", tasks/10)...)}, nil)
	f.Do("POST", "/v1/batches", map[string]any{"name": "stuck at night", "pool": "stuck-east", "devices": names("shut", tasks*2/10), "windows": closedWindows()}, nil)
}

// passSlot lets slot 17 of pool p-0018 go from one device to the next, by a forced release and by the reaper.
func (f *walkFleet) passSlot() {
	f.Helper()
	f.Do("PATCH", "/v1/pools/p-0018", map[string]any{"capacity": 18}, nil)
	names := []string{"hand-1", "hand-2", "hand-3"}
	f.Do("POST", "/v1/batches", map[string]any{"name": "handed on", "pool": "p-0018", "devices": names}, nil)
	for i, name := range names {
		g := f.ReportUntilGranted(name)
		if g.Slot != 17 {
			f.Fatalf("%s has slot %d", name, g.Slot)
		}
		switch i {
		case 0:
			f.Do("POST", "/v1/pools/p-0018/slots/17/release", map[string]any{"token": g.Token, "reason": "it hangs", "now": true}, nil)
		case 1:
			f.exec(`INSERT INTO clock_pair (id, ledger, wall) VALUES (1, now(), now()) ON CONFLICT (id) DO NOTHING`) // the clock is known and trusted
			f.exec(`UPDATE grants SET lease_until = now() - interval '1 minute' WHERE token = $1`, g.Token)
			f.Await("the reaper", func() bool {
				_, err := f.Dispatcher.Upkeep.Reap(f.Context())
				return err == nil && f.queryCount(`SELECT count(*) FROM grants WHERE token = $1`, g.Token) == 0
			})
		}
	}
}

// explainStuckPool checks the page of the pool with the most waiting tasks: it shows the reasons with numbers that
// add up, and each number links to exactly these tasks.
func (f *walkFleet) explainStuckPool(w *clickingVisitor) {
	w.Helper()
	w.clickLink(`thead a[href*="sort=waiting"]`)
	if first := w.elementText("tbody tr"); !strings.Contains(first, "stuck-east") {
		w.Errorf("the first row: %s", first)
	}
	w.clickLink("#pool-stuck-east a")
	var api operators.Waiting
	f.Do("GET", "/v1/pools/stuck-east/waiting?sample=200", nil, &api)
	sum, tasks := int64(0), f.queryCount(`SELECT count(*) FROM tasks WHERE pool = 'stuck-east' AND state = 'pending'`)
	for code, kind := range map[string]string{"device_unknown": "unknown", "limited": "limited", "device_blocked": "blocked", "batch_window": "shut"} {
		n := evalJS[int64](w.tab, fmt.Sprintf(`Number(document.querySelector('#waiting .sum a[href$="code=%s"] b').textContent.replace(/\D/g, ""))`, code))
		there := f.queryCount(`SELECT count(*) FROM tasks WHERE pool = 'stuck-east' AND state = 'pending' AND device LIKE $1`, "east-"+kind+"-%")
		if sum += n; !api.Sampled && n != there || max(n-there, there-n) > tasks/10 {
			w.Errorf("%s: %d, and the ledger has %d", code, n, there)
		}
	}
	if said := w.elementText("#waiting .sum"); sum != tasks || api.Sampled != strings.Contains(said, "of a sample") {
		w.Errorf("%d of %d tasks: %s", sum, tasks, said)
	}
	w.clickLink(`#waiting .sum a[href$="code=limited"]`)
	if n := evalJS[int64](w.tab, `document.querySelectorAll('tbody a[href^="/devices/"]').length`); n != evalJS[int64](w.tab, `document.querySelectorAll('tbody a[href^="/devices/east-limited-"]').length`) || n != min(100, f.queryCount(`SELECT count(*) FROM tasks WHERE device LIKE 'east-limited-%'`)) {
		w.Errorf("%d rows of those that are limited: %s", n, w.elementText("tbody"))
	}
	expectContains(w.T, w.elementText("main"), "account", "a-1")
}

// findDevice searches a device by its name and by a part of its name.
func (f *walkFleet) findDevice(w *clickingVisitor) {
	w.Helper()
	w.submitFields("#find", "hand-")
	w.clickLink(`main a[href="/devices/hand-3"]`)
	expectContains(w.T, w.elementText("#where"), "slot 17", "p-0018")
	if n := f.queryCount(`SELECT count(*) FROM grants WHERE device = 'hand-3' AND slot = 17 AND pool = 'p-0018'`); n != 1 {
		w.Error("the ledger has not")
	}
}

// findFailingArea reads the results of a batch grouped by a tag of its devices. The value of the tag with the most
// failures is first.
func (f *walkFleet) findFailingArea(w *clickingVisitor) {
	w.Helper()
	w.submitFields("#find", "nightly")
	w.clickLink(`main a[href^="/batches/"]`)
	w.submitFields("#results-form input[name=tag]", "area")
	first := evalJS[[]string](w.tab, `[...document.querySelector("#results tr[id^=tag-]").children].map((cell) => cell.textContent)`)
	const of = ` FROM tasks t JOIN devices d ON d.id = t.device JOIN batches b ON b.id = t.batch WHERE b.name = 'nightly firmware' AND d.tags ->> 'area' = 'area-3' AND t.state <> 'pending'`
	want := []string{"area-3", fmt.Sprint(f.queryCount(`SELECT count(*)` + of)), fmt.Sprint(f.queryCount(`SELECT count(*)` + of + ` AND t.state = 'failed'`))}
	if got := strings.Join(first, " "); strings.ReplaceAll(got, " ", "") != strings.Join(want, "") {
		w.Errorf("%s, want %s", got, want)
	}
}

// readNightBatch reads which tasks ended in the last 24 h, of a batch that runs for three nights.
func (f *walkFleet) readNightBatch(w *clickingVisitor) {
	w.Helper()
	w.clickLink(`nav a[href="/batches"]`)
	w.clickLink(`#batch-list a[href="/batches/` + itoa(f.queryCount(`SELECT id FROM batches WHERE name = 'nightly firmware'`)) + `"]`)
	since, until := time.Now().UTC().Add(-24*time.Hour).Truncate(time.Minute), time.Now().UTC().Truncate(time.Minute)
	const form = "2006-01-02T15:04" // the page takes times in the zone of the browser
	w.submitFields("#results-form input[name=since]", since.Local().Format(form), "#results-form input[name=until]", until.Local().Format(form), "#results-form input[name=tag]", "area")
	const of = ` FROM tasks t JOIN batches b ON b.id = t.batch WHERE b.name = 'nightly firmware' AND t.finished_at >= $1 AND t.finished_at < $2`
	night, failed := f.queryCount(`SELECT count(*)`+of, since, until), f.queryCount(`SELECT count(*)`+of+` AND t.state = 'failed' AND t.error = 'checksum mismatch'`, since, until)
	plain := strings.NewReplacer("\u202f", "", "\u2009", "")
	expectContains(w.T, plain.Replace(w.elementText("#results .note")), fmt.Sprintf("%d results of", night), fmt.Sprintf("%d checksum mismatch", failed))
	if all := f.queryCount(`SELECT total FROM batches WHERE name = 'nightly firmware'`); night == 0 || night > all/2 || failed == 0 {
		w.Errorf("%d of %d in the night, %d failed", night, all, failed)
	}
	expectContains(w.T, w.elementText("#results tr[id^=tag-]"), "area-3")
}

// expectHolderLinks checks that the row of a slot links to its present holder and to its earlier holders.
func (f *walkFleet) expectHolderLinks(w *clickingVisitor) {
	w.Helper()
	w.submitFields(".filters input[name=name]", "p-0018")
	w.clickLink("#pool-p-0018 a")
	w.clickLink(`#lanes a[href$="/slots/17"]`)
	rows := evalJS[[]string](w.tab, `[...document.querySelectorAll("#history tbody tr")].map((row) => [row.cells[0].textContent, row.cells[3].querySelector("time").dateTime, row.cells[5].textContent].join("|"))`)
	var api struct{ History []operators.Holding }
	f.Do("GET", "/v1/pools/p-0018/history?slot=17", nil, &api)
	for i, want := range []string{"hand-3|%s|holds it", "hand-2|%s|lease ended, taken back", "hand-1|%s|released by force"} {
		if want = fmt.Sprintf(want, api.History[i].Granted.UTC().Format("2006-01-02T15:04:05.000Z")); i >= len(rows) || rows[i] != want {
			w.Errorf("row %d of %q, want %s", i, rows, want)
		}
	}
}

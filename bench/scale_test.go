package bench

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// ledgerSize is the amount of data in the ledger of an installation.
type ledgerSize struct {
	pools, batchesPerPool, tasksPerBatch int // batches of each pool, and tasks of each batch
	devices                              int
	longBatchTasks                       int // tasks of the long batch in the first pool
	busyDevices                          int // devices with many tasks in the second pool
	tasksPerBusyDevice                   int // tasks of each of these devices
}

// measuredPaths returns the paths of the operators' pages and lists that are measured. In the ledger, the first
// pool has a long batch, and the second pool has devices with many tasks.
func measuredPaths() []string {
	all := []string{
		"/", "/pools/p-0001", "/pools/p-0002", "/pools/p-0003", "/batches", "/batches/1", "/batches/2", "/batches/11", "/tasks", "/tasks?state=pending", "/tasks?state=succeeded",
		"/tasks?pool=p-0002", "/tasks?batch=2", "/tasks?device=d-0000002", "/tasks?state=failed&pool=p-0003", "/tasks/7", "/tasks/17", "/devices", "/devices?show=silent", "/devices/d-0000002",
		"/activity", "/activity?pool=p-0001", "/system",
	}
	for _, list := range []string{
		"pools", "pools/p-0002", "pools/p-0001/slots", "pools/p-0001/limited", "batches", "batches/1", "batches/2", "tasks", "tasks?state=pending", "tasks?pool=p-0001&state=pending",
		"tasks?error=no%20route*", "tasks?kind=k&state=failed", "tasks?device=d-0000002", "tasks/17", "tasks/7/why", "devices", "devices?tag=area:7", "devices?tag=half:0", "devices?blocked=true",
		"devices?prefix=d-00000", "devices?recent=100", "events", "events?pool=p-0001", "events?device=d-0000002", "events?kind=task.succeeded", "tokens", "profiles",
	} {
		all = append(all, "/v1/"+list)
	}
	return append(all, "/metrics")
}

// TestScale measures each page and each list of operators with 1,000,000 devices, 1,000,000 open tasks and 3,000
// pools, and compares them with an installation that has ten of each. It also measures what the passes of the
// replica need meanwhile, and how much memory the replica needs under load:
//
//	cd bench && go test -v -run TestScale . -whole -timeout 1h
func TestScale(t *testing.T) {
	t.Parallel()
	if !*fullSize {
		t.Skip("measures, with -whole")
	}
	var sites []*testbed
	for _, f := range []ledgerSize{
		{pools: 10, batchesPerPool: 1, tasksPerBatch: 10, devices: 10, longBatchTasks: 10, busyDevices: 1, tasksPerBusyDevice: 10},
		{pools: 3000, batchesPerPool: 10, tasksPerBatch: 20, devices: 1_000_000, longBatchTasks: 200_000, busyDevices: 400, tasksPerBusyDevice: 500},
	} {
		s := newTestbed(t.Context(), t)
		s.enableStatementStats()
		s.startReplicas(1)
		s.stopServers()
		s.fillLedger(f)
		sites = append(sites, s)
	}
	for _, s := range sites {
		s.startReplicas(1)
		s.runTaskPerPool()
	}
	for _, path := range measuredPaths() {
		line := fmt.Sprintf("| `%s` |", path)
		for _, s := range sites {
			line += s.measurePageCost(path)
		}
		printNow("%s", line)
	}
	s := sites[1]
	printNow("memory of the replica: %s", s.memoryStatus())
	l := s.newHTTPLoad(scale{conns: 64, span: time.Minute}, numberedNames("d-", 1_000_000))
	l.wrapsAround = true
	done := l.run(s, reportAnyDevice)
	printNow("%d reports in a minute; memory of the replica: %s", done.count, s.memoryStatus())
}

// reportAnyDevice sends one report of a device, whether or not a task is granted, and adds its duration to totals.
// due is the time at which the report was to be sent.
func reportAnyDevice(c deviceClient, device string, due time.Time, totals *figures) error {
	_, _, err := c.requestTask(device)
	totals.recordReport(&due)
	totals.count++
	return ignoreBusy(err)
}

func (s *testbed) fillLedger(f ledgerSize) {
	const id = `'d-' || lpad((%s)::text, 7, '0')`
	device := func(n string) string { return fmt.Sprintf(id, n) }
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO devices (id, tags, attributes, created_at, last_seen, quiet_until, reach) SELECT %s, jsonb_build_object('area', (n %% 1000)::text, 'half', (n %% 2)::text),
			json_build_object('firmware', '1.2.' || n %% 9, 'uptime', n), now(), CASE WHEN n %% 50 > 0 THEN now() + interval '1 minute' END,
			CASE WHEN n %% 50 > 0 THEN now() + interval '1 minute' END, CASE WHEN n %% 10 = 0 THEN 1 ELSE 0 END FROM generate_series(0, %d) n`, device("n"), f.devices-1),
		fmt.Sprintf(`INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p-' || lpad(n::text, 4, '0'), 30, 3600000, now(), now() FROM generate_series(1, %d) n`, f.pools),
		fmt.Sprintf(`INSERT INTO batches (id, pool, kind, created_at, total) VALUES (1, 'p-0001', 'k', now(), %d), (2, 'p-0002', 'k', now(), %d)`, f.longBatchTasks, f.busyDevices*f.tasksPerBusyDevice),
		fmt.Sprintf(`INSERT INTO batches (id, pool, kind, created_at, total) SELECT 10 + (n - 1) * %d + b, 'p-' || lpad(n::text, 4, '0'), 'k', now(), %d FROM generate_series(1, %d) n, generate_series(1, %[1]d) b`, f.batchesPerPool, f.tasksPerBatch, f.pools),
		fmt.Sprintf(`INSERT INTO tasks (batch, pool, device) SELECT 1, 'p-0001', %s FROM generate_series(0, %d) n`, device("n"), f.longBatchTasks-1),
		fmt.Sprintf(`INSERT INTO tasks (batch, pool, device) SELECT 2, 'p-0002', %s FROM generate_series(0, %d) n`, device(fmt.Sprintf("n %% %d", f.busyDevices)), f.busyDevices*f.tasksPerBusyDevice-1),
		fmt.Sprintf(`INSERT INTO tasks (batch, pool, device) SELECT b.id, b.pool, %s FROM batches b, generate_series(1, %d) n WHERE b.id > 10`, device(fmt.Sprintf("(b.id * 7919 + n * 104729) %% %d", f.devices)), f.tasksPerBatch),
		// In addition to the open tasks, about as many tasks have ended.
		fmt.Sprintf(`INSERT INTO batches (id, pool, kind, created_at, total) SELECT 1000000 + (n - 1) * %d + b, 'p-' || lpad(n::text, 4, '0'), 'k', now() - interval '1 day', %d FROM generate_series(1, %d) n, generate_series(1, %[1]d) b`, f.batchesPerPool, f.tasksPerBatch, f.pools),
		fmt.Sprintf(`INSERT INTO tasks (batch, pool, device, state, error, finished_at) SELECT b.id, b.pool, %s, CASE WHEN b.id %% 97 = 0 THEN 'failed' ELSE 'succeeded' END, CASE WHEN b.id %% 97 = 0 THEN 'no route to host' ELSE '' END, now()
			FROM batches b, generate_series(1, %d) n WHERE b.id > 1000000`, device(fmt.Sprintf("(b.id * 7919 + n * 104729) %% %d", f.devices)), f.tasksPerBatch),
		`INSERT INTO batch_deltas (batch, pool, state, n) SELECT batch, pool, state, count(*) FROM tasks WHERE state <> 'pending' GROUP BY batch, pool, state`,
		`INSERT INTO events (at, kind, pool, task, batch, device, token) SELECT now() - interval '2 hours', kind, pool, id, batch, device, id FROM tasks, (VALUES ('task.granted'), ('task.succeeded')) AS k (kind) WHERE state <> 'pending'`,
		`INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
			SELECT id, batch, pool, n, device, nextval('grant_token'), id || '.1.x', 1, now(), now() + interval '1 hour', now() + interval '2 hours', 3600000
			FROM (SELECT *, row_number() OVER (PARTITION BY pool ORDER BY id DESC) - 1 AS n FROM (SELECT DISTINCT ON (device) * FROM tasks WHERE state = 'pending' AND batch > 10 ORDER BY device, id) AS one) AS numbered WHERE n < 5`,
		`SELECT setval('batches_id_seq', (SELECT max(id) FROM batches))`,
		`VACUUM ANALYZE`,
	} {
		s.runSQL(statement)
	}
}

// runTaskPerPool runs one task in each pool, so that each pool has something to show.
func (s *testbed) runTaskPerPool() {
	asks := s.startableDevices()
	l := s.newHTTPLoad(scale{conns: 16, span: time.Minute}, asks)
	done := l.run(s, runCycle)
	printNow("%d cycles of %d pools in %s", done.count, len(asks), done.elapsed.Round(time.Second))
}

// startableDevices returns, for each pool, one device that holds no task and can start one.
func (s *testbed) startableDevices() (devices []string) {
	rows, err := s.openPgxPool().Query(s.ctx, `SELECT max(device) FROM tasks WHERE state = 'pending' AND batch > 10 AND device > 'd-0200000' AND device NOT IN (SELECT device FROM grants) GROUP BY pool`)
	s.failOnError(err)
	for rows.Next() {
		var device string
		s.failOnError(rows.Scan(&device))
		devices = append(devices, device)
	}
	s.failOnError(rows.Err())
	slices.Sort(devices)
	return slices.Compact(devices)
}

// measurePageCost measures one page. It returns as text how many blocks of Postgres the page reads, the processor
// times of Postgres and of the server, the shortest duration, and the length of the page.
func (s *testbed) measurePageCost(path string) string {
	const times = 5
	s.fetchPage(path)
	s.resetStatementStats()
	before := s.cpuSeconds()
	shortest, length := time.Hour, 0
	for range times {
		if path == "/metrics" {
			s.sleepUntil(time.Now().Add(1100 * time.Millisecond)) // so that each request reads the values anew
		}
		took, n := s.fetchPage(path)
		shortest, length = min(shortest, took), n
	}
	after := s.cpuSeconds()
	blocks := s.runSQL(`SELECT format('%s', coalesce(sum(shared_blks_hit + shared_blks_read) / $1, 0)::int) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat%' AND (query LIKE 'SELECT%' OR query LIKE 'WITH%')`, times)
	return fmt.Sprintf(" %s blocks, cpu %.1f + %.1f, %.1f ms (%d kB) |", blocks[0], (after["postgres"]-before["postgres"])/times*1000, (after["server"]-before["server"])/times*1000, shortest.Seconds()*1000, length/1024)
}

func (s *testbed) fetchPage(path string) (time.Duration, int) {
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://"+s.addrs[0]+path, nil)
	s.failOnError(err)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Cookie", s.sessionCookie())
	begin := time.Now()
	response, err := http.DefaultTransport.RoundTrip(request)
	s.failOnError(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	s.failOnError(err)
	if response.StatusCode != http.StatusOK {
		s.t.Errorf("%s: %s %.300s", path, response.Status, body)
	}
	return time.Since(begin), len(body)
}

// sessionCookie returns the session cookie of an operator. The first call signs in.
func (s *testbed) sessionCookie() string {
	if s.cookie != "" {
		return s.cookie
	}
	request, err := http.NewRequestWithContext(s.ctx, http.MethodPost, "http://"+s.addrs[0]+"/sign-in", strings.NewReader(url.Values{"token": {adminToken}}.Encode()))
	s.failOnError(err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultTransport.RoundTrip(request)
	s.failOnError(err)
	defer response.Body.Close()
	s.cookie, _, _ = strings.Cut(response.Header.Get("Set-Cookie"), ";")
	return s.cookie
}

// memoryStatus returns the present and the highest resident memory of the replica as the kernel reports them.
func (s *testbed) memoryStatus() (status string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.servers[0].Pid()))
	s.failOnError(err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "VmHWM") {
			status += strings.Join(strings.Fields(line), " ") + " "
		}
	}
	return status
}

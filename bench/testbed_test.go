package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	adminToken = "admin-token-of-the-benchmark"
	fleetToken = "fleet-token-of-the-benchmark"
)

// testbed is the environment of one row: servers that only this row uses, each in its own process. The load runs in
// this process.
type testbed struct {
	ctx      context.Context //nolint:containedctx // context of the whole run: Ctrl-C ends it
	t        *testing.T
	dsn      string
	postgres *servers.PostgresServer
	redis    *servers.RedisServer
	broker   *servers.MosquittoServer // only for rows over MQTT
	servers  []*servers.Process       // replicas, or the helper program that is measured instead
	addrs    []string                 // addresses of the processes in servers
	cookie   string                   // session cookie of an operator
}

func newTestbed(ctx context.Context, t *testing.T) *testbed {
	t.Helper()
	s := &testbed{ctx: ctx, t: t, postgres: servers.StartDeployedPostgres(t), redis: servers.StartRedis(t)}
	s.dsn = s.postgres.NewDatabase(t)
	if *statements {
		s.enableStatementStats()
	}
	return s
}

// buildProgram builds the dispatcher for a test without the flag -binary, and returns the path of the program.
var buildProgram = sync.OnceValues(func() (string, error) { //nolint:gochecknoglobals // once for all rows
	path := filepath.Join("..", "bin", "tests", "dispatcher-bench")
	out, err := exec.Command("go", "-C", "..", "build", "-buildvcs=false", "-o", filepath.Join("bin", "tests", "dispatcher-bench"), "./cmd/dispatcher").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return path, nil
})

func programPath(t *testing.T) string {
	t.Helper()
	if *binary != "" {
		return *binary
	}
	path, err := buildProgram()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *testbed) startReplicas(replicas int) {
	path := programPath(s.t)
	for range replicas {
		s.startServer(path, []string{"serve"}, "/readyz", func(addr string) []string {
			return append(s.brokerSetting("DISPATCHER_MQTT_URL=mqtt://"),
				"DISPATCHER_POSTGRES_DSN="+s.dsn, "DISPATCHER_REDIS_URL="+s.redis.URL(), "DISPATCHER_HTTP_LISTEN="+addr,
				"DISPATCHER_ADMIN_TOKEN="+adminToken, "DISPATCHER_FLEET_TOKEN="+fleetToken, "DISPATCHER_LOG_LEVEL=warn", "DISPATCHER_REPORT_RATE=0", "DISPATCHER_REGISTRATION_RATE=0")
		})
	}
}

// startHelper starts this test program as another process. It is then the server with this name, with which the
// dispatcher is compared.
func (s *testbed) startHelper(name string) {
	path, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	s.startServer(path, nil, "/", func(addr string) []string {
		return append(s.brokerSetting("BENCH_MQTT="), "BENCH_HELPER="+name, "BENCH_LISTEN="+addr, "BENCH_DSN="+s.dsn, "BENCH_REDIS="+s.redis.Addr)
	})
}

// brokerSetting returns a setting with the address of the broker. If there is no broker, it returns nil.
func (s *testbed) brokerSetting(setting string) []string {
	if s.broker == nil {
		return nil
	}
	return []string{setting + s.broker.Addr}
}

func (s *testbed) startServer(path string, args []string, probe string, settings func(addr string) []string) {
	addr := servers.FreeAddr(s.t)
	command := func() *exec.Cmd {
		cmd := exec.Command(path, args...)
		cmd.Env = append(os.Environ(), settings(addr)...)
		return cmd
	}
	process := servers.StartProcess(s.t, command, func() error { return checkReady("http://" + addr + probe) })
	s.t.Cleanup(func() {
		process.Kill()
		if said := process.Output(); s.t.Failed() {
			s.t.Logf("%s:\n%s", path, said[:min(len(said), 20_000)])
		}
	})
	s.servers, s.addrs = append(s.servers, process), append(s.addrs, addr)
}

// stopServers stops the replicas cleanly. The data that they have created stays.
func (s *testbed) stopServers() {
	for _, server := range s.servers {
		server.Stop()
	}
	s.servers, s.addrs = nil, nil
}

func checkReady(url string) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", response.Status)
	}
	return nil
}

func (s *testbed) sendOperatorJSON(method, path string, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.sendOperatorRequest(method, path, "application/json", bytes.NewReader(text))
}

func (s *testbed) sendOperatorRequest(method, path, contentType string, body io.Reader) {
	request, err := http.NewRequestWithContext(s.ctx, method, "http://"+s.addrs[0]+path, body)
	if err != nil {
		s.t.Error(err)
		return
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", contentType)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer response.Body.Close()
	reply, _ := io.ReadAll(response.Body)
	if response.StatusCode/100 != 2 {
		s.t.Errorf("%s %s: %s %.500s", method, path, response.Status, reply)
	}
}

// createPool creates a pool with more slots than the load has clients.
func (s *testbed) createPool(name string) {
	s.sendOperatorJSON(http.MethodPut, "/v1/pools/"+name, map[string]any{"capacity": 1000})
}

// queueBatches queues batches in the pool. There is one task for each entry of devices.
func (s *testbed) queueBatches(pool string, devices []string) {
	s.forEachChunk(devices, func(some []string) {
		s.sendOperatorJSON(http.MethodPost, "/v1/batches", map[string]any{"pool": pool, "kind": "probe", "devices": some})
	})
}

// registerDevices registers devices, so that a row does not measure their first reports.
func (s *testbed) registerDevices(prefix string, n int) []string {
	devices := numberedNames(prefix, n)
	s.forEachChunk(devices, func(some []string) {
		var body bytes.Buffer
		for _, d := range some {
			fmt.Fprintf(&body, "{\"id\":%q}\n", d)
		}
		s.sendOperatorRequest(http.MethodPost, "/v1/devices", "application/x-ndjson", &body)
	})
	return devices
}

func (s *testbed) forEachChunk(devices []string, do func(some []string)) {
	const maxChunk = 10_000
	for len(devices) > 0 && !s.t.Failed() && s.ctx.Err() == nil {
		n := min(maxChunk, len(devices))
		do(devices[:n])
		devices = devices[n:]
	}
}

// runConcurrently calls do(0) to do(n-1), at most 16 of them at the same time.
func (s *testbed) runConcurrently(n int, do func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !s.t.Failed(); i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	all.Wait()
}

func numberedNames(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = prefix + sevenDigits(i)
	}
	return all
}

func sevenDigits(i int) string { return fmt.Sprintf("%07d", i) }

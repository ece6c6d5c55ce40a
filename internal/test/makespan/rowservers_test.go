package makespan

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/internal/test/makespan/baseline"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	adminToken = "admin-token-of-the-benchmark"
	fleetToken = "fleet-token-of-the-benchmark"
)

var (
	raceProgram  = servers.Program{Race: true} //nolint:gochecknoglobals // built once
	plainProgram servers.Program               //nolint:gochecknoglobals // built once
)

// programPath returns the path of the dispatcher. For a measurement, it is built without the race detector.
func programPath(t *testing.T) string {
	t.Helper()
	if *fullSize {
		return plainProgram.Path(t)
	}
	return raceProgram.Path(t)
}

// rowServers is the environment of one row: servers that only this row uses, and one replica, each in its own
// process. The fleet runs in this process.
type rowServers struct {
	url, mqttURL string
	pids         map[string]int // process ids; key: name of the server
}

// newRowServers starts the servers for the row r. Its devices report once in each period.
func newRowServers(t *testing.T, r row, period time.Duration) *rowServers {
	t.Helper()
	cache := servers.StartRedis(t)
	p := &rowServers{pids: map[string]int{"redis": cache.Pid()}}
	if r.baseline {
		client := redis.NewClient(&redis.Options{Addr: cache.Addr})
		t.Cleanup(func() { _ = client.Close() })
		server := httptest.NewServer(baseline.New(client, period))
		t.Cleanup(server.Close)
		p.url = server.URL
		return p
	}
	ledger, broker := servers.StartPostgres(t), servers.StartMosquitto(t)
	addr := servers.FreeAddr(t)
	program := startReplica(t, addr, map[string]string{
		"DISPATCHER_POSTGRES_DSN": ledger.NewDatabase(t), "DISPATCHER_REDIS_URL": cache.URL(), "DISPATCHER_MQTT_URL": broker.URL,
		"DISPATCHER_HTTP_LISTEN": addr, "DISPATCHER_ADMIN_TOKEN": adminToken, "DISPATCHER_FLEET_TOKEN": fleetToken, "DISPATCHER_REGISTRATION_RATE": "0",
		"DISPATCHER_REPORT_PERIOD": period.String(), "DISPATCHER_LEASE_MIN": "100ms", "DISPATCHER_REAP_INTERVAL": "1s",
		"DISPATCHER_LOG_LEVEL": "debug",
	})
	p.pids["postgres"], p.pids["broker"], p.pids["dispatcher"] = ledger.Pid(), broker.Pid(), program.Pid()
	p.url, p.mqttURL = "http://"+delayedAddr(t, addr, r.roundTrip), "mqtt://"+delayedAddr(t, broker.Addr, r.roundTrip)
	return p
}

// startReplica starts a replica. It logs the replica's output if the row fails or the output contains errors.
func startReplica(t *testing.T, addr string, settings map[string]string) *servers.Process {
	t.Helper()
	binary := programPath(t)
	command := func() *exec.Cmd {
		cmd := exec.Command(binary, "serve")
		cmd.Env = os.Environ()
		for name, value := range settings {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		return cmd
	}
	process := servers.StartProcess(t, command, func() error { return checkReady(addr) })
	t.Cleanup(func() {
		process.Kill()
		said := []byte(process.Output())
		if steps := readSteps(said); len(steps) > 0 {
			t.Logf("handoffs in the server:\n%s", steps)
		}
		if said = withoutDebugLines(said); t.Failed() || bytes.Contains(said, []byte("level=ERROR")) {
			t.Logf("the dispatcher:\n%s", said[:min(len(said), 20_000)])
		}
	})
	return process
}

func checkReady(addr string) error {
	response, err := http.Get("http://" + addr + "/readyz")
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", response.Status)
	}
	return nil
}

// delayedAddr returns the address of a proxy behind which the server has this round-trip time.
func delayedAddr(t *testing.T, addr string, roundTrip time.Duration) string {
	t.Helper()
	if roundTrip == 0 {
		return addr
	}
	proxy := servers.NewProxy(t, addr)
	proxy.Delay(roundTrip / 2)
	return proxy.Addr
}

// simulatorConfig returns the configuration of the fleet of a row.
func (p *rowServers) simulatorConfig(r row, s scale) simulator.Config {
	c := simulator.Config{
		URL: p.url, MQTTURL: p.mqttURL, OperatorToken: adminToken, FleetToken: fleetToken,
		Devices: r.tasks, Tasks: r.tasks, Pool: "sim", Capacity: s.slots, Via: r.via,
		Work: s.work, Period: s.period, Introduce: true, RestTime: s.restTime, RoundTrip: r.roundTrip, NotBefore: r.notBefore,
		Seed: 1, Timeout: 10 * time.Minute,
	}
	if r.silentShare > 0 {
		c.Gone, c.Lease = r.silentShare, max(5*s.work, time.Second)
	}
	return c
}

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
	racing   = servers.Program{Race: true} //nolint:gochecknoglobals // built once
	measured servers.Program               //nolint:gochecknoglobals // built once
)

// dispatcher returns the path of the program. For a measurement it is built without the race detector.
func dispatcher(t *testing.T) string {
	t.Helper()
	if *whole {
		return measured.Path(t)
	}
	return racing.Path(t)
}

// plant is the environment of one row: its own servers and one replica, each in its own process. The fleet runs in this process.
type plant struct {
	url, mqttURL string
	pids         map[string]int // key: name of the server
}

// newPlant starts the servers for a row whose devices report once in period.
func newPlant(t *testing.T, r row, period time.Duration) *plant {
	t.Helper()
	cache := servers.Redis(t)
	p := &plant{pids: map[string]int{"redis": cache.Pid()}}
	if r.baseline {
		client := redis.NewClient(&redis.Options{Addr: cache.Addr})
		t.Cleanup(func() { _ = client.Close() })
		server := httptest.NewServer(baseline.New(client, period))
		t.Cleanup(server.Close)
		p.url = server.URL
		return p
	}
	ledger, broker := servers.Postgres(t), servers.Mosquitto(t)
	addr := servers.FreeAddr(t)
	program := serve(t, addr, map[string]string{
		"DISPATCHER_POSTGRES_DSN": ledger.NewDatabase(t), "DISPATCHER_REDIS_URL": cache.URL(), "DISPATCHER_MQTT_URL": broker.URL,
		"DISPATCHER_HTTP_LISTEN": addr, "DISPATCHER_ADMIN_TOKEN": adminToken, "DISPATCHER_FLEET_TOKEN": fleetToken,
		"DISPATCHER_REPORT_PERIOD": period.String(), "DISPATCHER_LEASE_MIN": "100ms", "DISPATCHER_REAP_INTERVAL": "1s",
		"DISPATCHER_LOG_LEVEL": "debug",
	})
	p.pids["postgres"], p.pids["broker"], p.pids["dispatcher"] = ledger.Pid(), broker.Pid(), program.Pid()
	p.url, p.mqttURL = "http://"+far(t, addr, r.roundTrip), "mqtt://"+far(t, broker.Addr, r.roundTrip)
	return p
}

// serve starts a replica. It logs the replica's output if the row fails or the output contains errors.
func serve(t *testing.T, addr string, settings map[string]string) *servers.Process {
	t.Helper()
	binary := dispatcher(t)
	command := func() *exec.Cmd {
		cmd := exec.Command(binary, "serve")
		cmd.Env = os.Environ()
		for name, value := range settings {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		return cmd
	}
	process := servers.StartProcess(t, command, func() error { return ready(addr) })
	t.Cleanup(func() {
		process.Kill()
		said := []byte(process.Output())
		if steps := readSteps(said); len(steps) > 0 {
			t.Logf("handoffs in the server:\n%s", steps)
		}
		if said = important(said); t.Failed() || bytes.Contains(said, []byte("level=ERROR")) {
			t.Logf("the dispatcher:\n%s", said[:min(len(said), 20_000)])
		}
	})
	return process
}

func ready(addr string) error {
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

// far returns an address behind which the server has this round-trip time.
func far(t *testing.T, addr string, roundTrip time.Duration) string {
	t.Helper()
	if roundTrip == 0 {
		return addr
	}
	proxy := servers.NewProxy(t, addr)
	proxy.Delay(roundTrip / 2)
	return proxy.Addr
}

// simulation returns the configuration of the fleet of a row.
func (p *plant) simulation(r row, s scale) simulator.Config {
	c := simulator.Config{
		URL: p.url, MQTTURL: p.mqttURL, OperatorToken: adminToken, FleetToken: fleetToken,
		Devices: r.tasks, Tasks: r.tasks, Pool: "sim", Capacity: s.slots, Via: r.via,
		Work: s.work, Period: s.period, Introduce: true, Rest: s.rest, RoundTrip: r.roundTrip, NotBefore: r.notBefore,
		Seed: 1, Timeout: 10 * time.Minute,
	}
	if r.gone > 0 {
		c.Gone, c.Lease = r.gone, max(5*s.work, time.Second)
	}
	return c
}

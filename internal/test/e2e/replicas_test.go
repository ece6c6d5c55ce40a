package e2e

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	adminToken = "admin-token-of-the-test"
	fleetToken = "fleet-token-of-the-test"
)

var program = servers.Program{Race: true} //nolint:gochecknoglobals // built once

// parallelTests is the number of tests that run at the same time. Most of the time they wait for leases to end and
// for servers to start.
const parallelTests = "4"

// TestMain runs the tests. If the first argument is visitArg, this program is the command that callers run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == visitArg {
		os.Exit(runVisit(os.Args[2:])) //nolint:forbidigo // TestMain's way to end
	}
	_ = flag.Set("test.parallel", parallelTests) // m.Run parses the command line later, so a -parallel there has precedence
	m.Run()
}

// replica is one process of `dispatcher serve`.
type replica struct {
	*servers.Process
	addr string
}

// startReplica starts a replica on these servers and waits until it is ready.
func startReplica(t *testing.T, dsn, redisURL string, settings ...string) *replica {
	t.Helper()
	return startReplicaBinary(t, program.Path(t), dsn, redisURL, settings...)
}

// startReplicaBinary does the same as startReplica, with another build of the program.
func startReplicaBinary(t *testing.T, binary, dsn, redisURL string, settings ...string) *replica {
	t.Helper()
	r := &replica{addr: servers.FreeAddr(t)}
	command := func() *exec.Cmd {
		cmd := exec.Command(binary, "serve")
		cmd.Env = append(os.Environ(),
			"DISPATCHER_POSTGRES_DSN="+dsn, "DISPATCHER_REDIS_URL="+redisURL, "DISPATCHER_HTTP_LISTEN="+r.addr,
			"DISPATCHER_ADMIN_TOKEN="+adminToken, "DISPATCHER_FLEET_TOKEN="+fleetToken, "DISPATCHER_LOG_LEVEL=info",
		)
		cmd.Env = append(cmd.Env, settings...)
		return cmd
	}
	r.Process = servers.StartProcess(t, command, func() error { return checkReady(r.addr) })
	return r
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

// stopCleanly stops the replica with SIGTERM. The exit status must be 0. If the race detector found a data race, the
// exit status is not 0.
func (r *replica) stopCleanly(t *testing.T) {
	t.Helper()
	r.Stop()
	if code := r.ExitCode(); code != 0 {
		t.Errorf("replica ended with status %d:\n%s", code, r.Output())
	}
}

// startBalancer returns the URL of a load balancer in front of the replicas. It assigns connections to them in
// turn. It has no health checks, so a replica that hangs also gets connections.
func startBalancer(t *testing.T, replicas ...*replica) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = l.Close() })
	var next atomic.Int64
	go func() {
		for {
			client, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // too many files are open for the moment
				t.Log("accepting a connection:", err)
				<-time.After(100 * time.Millisecond)
				continue
			}
			go proxyConn(client, replicas[next.Add(1)%int64(len(replicas))].addr)
		}
	}()
	return "http://" + l.Addr().String()
}

func proxyConn(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		if half, ok := server.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(client, server)
}

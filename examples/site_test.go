// Package examples_test runs the examples against the program.
package examples_test

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	pool     = "nightly"
	limitSet = "sms"
	patience = time.Minute
)

// The programs that the tests run. Each is built once.
var (
	program servers.Program                              //nolint:gochecknoglobals // see above
	caller  = servers.Program{Folder: "examples/caller"} //nolint:gochecknoglobals // see above
)

// devServer is a `dispatcher dev` with a pool of one slot, and a token for callers.
type devServer struct {
	*testing.T
	admin   *operators.Client
	environ []string
}

func newDevServer(t *testing.T) *devServer {
	t.Helper()
	addr, data := servers.FreeAddr(t), t.TempDir()
	servers.StartProcess(t, func() *exec.Cmd {
		return exec.Command(program.Path(t), "dev", "--listen", addr, "--mqtt-listen", servers.FreeAddr(t), "--data", data)
	}, func() error {
		response, err := http.Get("http://" + addr + "/readyz")
		if err != nil {
			return err
		}
		if response.Body.Close(); response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	token, err := os.ReadFile(filepath.Join(data, "admin-token"))
	must.Succeed(t, err)
	s := &devServer{T: t}
	if s.admin, err = operators.New(operators.Config{URL: "http://" + addr, Token: strings.TrimSpace(string(token))}); err != nil {
		t.Fatal(err)
	}
	_, err1 := s.admin.Pools.Put(t.Context(), pool, operators.PoolSettings{Capacity: 1})
	made, err2 := s.admin.Tokens.Create(t.Context(), operators.NewToken{Name: "ci", Role: "caller", Pools: []string{pool}, LimitSets: []string{limitSet}})
	must.Succeed(t, errors.Join(err1, err2))
	s.environ = append(os.Environ(), "DISPATCHER_URL="+s.admin.URL(), "DISPATCHER_TOKEN="+made.Secret, "LEASE_MS=9000", "WAIT=1")
	return s
}

// runningExample is an example while it runs.
type runningExample struct {
	*devServer
	await.Output
	cmd *exec.Cmd
}

func (s *devServer) startExample(name string, args ...string) *runningExample {
	s.Helper()
	e := &runningExample{devServer: s, cmd: exec.Command(name, args...)}
	e.cmd.Env, e.cmd.Stdout, e.cmd.Stderr = s.environ, e, e
	must.Succeed(s, e.cmd.Start())
	s.Cleanup(func() { _ = e.cmd.Process.Kill() })
	return e
}

// waitForOutput waits until the output contains words.
func (e *runningExample) waitForOutput(words string) {
	e.Helper()
	e.waitUntil(words, func() bool { return strings.Contains(e.String(), words) })
}

func (e *runningExample) waitUntil(want string, is func() bool) {
	e.Helper()
	await.True(e.T, want, is, func() string { return e.cmd.String() + " said:\n" + e.String() })
}

func (e *runningExample) sendSignal(s os.Signal) {
	e.Helper()
	must.Succeed(e, e.cmd.Process.Signal(s))
}

func (e *runningExample) expectExit(code int) {
	e.Helper()
	_ = e.cmd.Wait()
	if got := e.cmd.ProcessState.ExitCode(); got != code {
		e.Errorf("%s: exit %d, want %d; it said:\n%s", e.cmd, got, code, e.String())
	}
}

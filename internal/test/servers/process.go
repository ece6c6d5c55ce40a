// Package servers starts Redis, Postgres and mosquitto servers that only the tests use, on free ports of the
// loopback and in temporary folders. The servers end with the test. Each can be killed, paused and restarted. The
// package is never linked into the program.
//
// If a server program is not installed, the test is skipped with a message. If CI is set in the environment, the
// test fails instead.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTimeout is the longest time after which a started server must answer, even on a busy machine.
const startTimeout = 60 * time.Second

// Process is a server process that a test controls.
type Process struct {
	tb      testing.TB
	command func() *exec.Cmd
	ready   func() error

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	output *bytes.Buffer
}

// StartProcess starts a process with the command that the function command returns, and waits until checkReady returns
// nil. The process is killed when the test ends.
func StartProcess(tb testing.TB, command func() *exec.Cmd, checkReady func() error) *Process {
	tb.Helper()
	p := &Process{tb: tb, command: command, ready: checkReady}
	p.Start()
	tb.Cleanup(p.Kill)
	return p
}

// Start starts the process again after Kill or Stop, and waits until it is ready.
func (p *Process) Start() {
	p.tb.Helper()
	p.spawn()
	p.waitReady()
}

func (p *Process) spawn() {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd, output, exited := p.command(), &bytes.Buffer{}, make(chan struct{})
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		p.tb.Fatalf("starting %s: %v", cmd.Path, err)
	}
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	p.cmd, p.output, p.exited = cmd, output, exited
}

func (p *Process) waitReady() {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := p.ready()
		if err == nil {
			return
		}
		select {
		case <-time.After(pause):
		case <-p.exited:
			p.tb.Fatalf("%s ended before it was ready (%v):\n%s", p.cmd.Path, err, p.output)
		case <-ctx.Done():
			p.tb.Fatalf("%s was not ready within %s: %v", p.cmd.Path, startTimeout, err)
		}
	}
}

// Pid returns the id of the running process.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Kill ends the process at once (SIGKILL) and waits for it.
func (p *Process) Kill() { p.signalAndWait(syscall.SIGKILL) }

// Stop asks the process to end (SIGTERM) and waits for it.
func (p *Process) Stop() { p.signalAndWait(syscall.SIGTERM) }

// Signal sends a signal, for instance SIGSTOP and SIGCONT.
func (p *Process) Signal(signal syscall.Signal) {
	p.tb.Helper()
	if err := syscall.Kill(p.Pid(), signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.tb.Errorf("signal %v: %v", signal, err)
	}
}

// Pause stops the process (SIGSTOP). Its connections stay open, and it answers nothing.
func (p *Process) Pause() {
	p.tb.Helper()
	p.Signal(syscall.SIGSTOP)
}

// Resume ends Pause (SIGCONT). The process then handles the data that arrived during the pause.
func (p *Process) Resume() {
	p.tb.Helper()
	p.Signal(syscall.SIGCONT)
}

// Exited returns a channel that is closed when the running process has ended.
func (p *Process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// ExitCode returns the exit code of the process that ended last, or -1 if a signal ended it.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.ProcessState.ExitCode()
}

// Output waits until the process has ended, and returns what it wrote to stdout and stderr.
func (p *Process) Output() string {
	<-p.Exited()
	return p.output.String()
}

func (p *Process) signalAndWait(sig syscall.Signal) {
	p.mu.Lock()
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()
	_ = cmd.Process.Signal(syscall.SIGCONT) // a paused process cannot end
	_ = cmd.Process.Signal(sig)
	select {
	case <-exited:
	case <-time.After(startTimeout):
		_ = cmd.Process.Kill()
		<-exited
	}
}

// Servers use ports below the range of ports for outgoing connections. Otherwise such a connection could take the
// port of a server while the server is down.
const (
	firstPort = 10_000
	lastPort  = 32_000
)

// FreeAddr returns a free address on the loopback. While this test runs, no other test gets the same address, even
// in the process of another user: a server binds its port only some time after the port was chosen, so the test keeps
// the UDP port with the same number until it ends.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(lastPort-firstPort))
		reservation, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			_ = reservation.Close()
			continue
		}
		_ = l.Close()
		tb.Cleanup(func() { _ = reservation.Close() })
		return addr
	}
	tb.Fatal("no free port")
	return ""
}

// RequireProgram returns the path of a server program. If the program is not installed, it skips the test. Under CI
// it fails the test.
func RequireProgram(tb testing.TB, name string) string {
	tb.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, dir := range append(dirs, "/usr/sbin", "/usr/local/sbin") {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		tb.Fatalf("%s is not installed; tests need it (make deps)", name)
	}
	tb.Skipf("%s is not installed; see CONTRIBUTING.md (make deps)", name)
	return ""
}

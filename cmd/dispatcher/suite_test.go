package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

var (
	update = flag.Bool("update", false, "write the golden files") //nolint:gochecknoglobals // a flag of the test
	shared servers.SharedPostgres                                 //nolint:gochecknoglobals // one server for all tests, closed by TestMain
	binary string                                                 //nolint:gochecknoglobals // built once, by TestMain
)

const patience = 60 * time.Second

// TestMain builds the program as it is shipped: exit codes and signals are
// those of the process.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "dispatcher-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "dispatcher")
	if out, err := exec.Command("go", "build", "-ldflags", "-X main.version=v0.0.0-test", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	defer shared.Close()
	return m.Run()
}

// program is the program with these arguments and nothing else in its
// environment but what is given.
func program(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	cmd.Dir = t.TempDir()
	return cmd
}

// execute runs the program to its end.
func execute(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := program(t, environ, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// daemon is the program at work.
type daemon struct {
	cmd      *exec.Cmd
	ended    chan struct{}
	keyboard *os.File // of one on a terminal

	mu     sync.Mutex
	output bytes.Buffer
}

// start runs the program until end, or the test's end.
func start(t *testing.T, environ []string, args ...string) *daemon {
	t.Helper()
	d := &daemon{cmd: program(t, environ, args...), ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d, d
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.ended)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.ended
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), d.text())
		}
	})
	return d
}

// Write collects what the program says.
func (d *daemon) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.output.Write(b)
}

func (d *daemon) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.output.String()
}

// says waits for words of the program and returns the first group.
func (d *daemon) says(t *testing.T, pattern string) string {
	t.Helper()
	words := regexp.MustCompile(pattern)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; {
		if found := words.FindStringSubmatch(d.text()); found != nil {
			return found[len(found)-1]
		}
		select {
		case <-tick.C:
		case <-d.ended:
			if found := words.FindStringSubmatch(d.text()); found != nil { // its last words
				return found[len(found)-1]
			}
			t.Fatalf("ended (%v) before it said %q", d.cmd.ProcessState, pattern)
		}
		if time.Now().After(deadline) {
			t.Fatalf("never said %q", pattern)
		}
	}
}

// end sends a signal and returns the exit code.
func (d *daemon) end(t *testing.T, signal syscall.Signal) int {
	t.Helper()
	if err := d.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.ended:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatal("did not end")
		return -1
	}
}

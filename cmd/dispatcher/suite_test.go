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
	"syscall"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

var (
	update         = flag.Bool("update", false, "write the golden files") //nolint:gochecknoglobals // a flag of the test
	sharedPostgres servers.SharedPostgres                                 //nolint:gochecknoglobals // one server for all tests, closed by TestMain
	programPath    string                                                 //nolint:gochecknoglobals // built once, by TestMain
)

// TestMain builds the program as it is shipped, so the tests check the exit codes and signals of
// the real process.
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
	programPath = filepath.Join(dir, "dispatcher")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-X main.version=v0.0.0-test", "-o", programPath, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in scripts/build
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	defer sharedPostgres.Close()
	return m.Run()
}

// programCommand returns a command that runs the program with these arguments. Its environment contains
// PATH, HOME and environ.
func programCommand(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programPath, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	cmd.Dir = t.TempDir()
	return cmd
}

// runProgram runs the program until it ends.
func runProgram(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := programCommand(t, environ, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// runningProgram is a program that was started, with its output so far.
type runningProgram struct {
	await.Output

	cmd      *exec.Cmd
	ended    chan struct{}
	terminal *os.File // the terminal of a program that runs on a terminal
}

// startProgram starts the program. It runs until it ends by itself, a test sends a signal, or the test ends.
func startProgram(t *testing.T, environ []string, args ...string) *runningProgram {
	t.Helper()
	d := &runningProgram{cmd: programCommand(t, environ, args...), ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = d, d
	must.Succeed(t, d.cmd.Start())
	go func() {
		_ = d.cmd.Wait()
		close(d.ended)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.ended
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), d.String())
		}
	})
	return d
}

// waitForOutput waits for output that matches pattern. It returns the last group of the match.
func (d *runningProgram) waitForOutput(t *testing.T, pattern string) string {
	t.Helper()
	words := regexp.MustCompile(pattern)
	var found []string
	await.True(t, "output "+pattern, func() bool {
		hasEnded := d.hasEnded() // before the output is read
		found = words.FindStringSubmatch(d.String())
		if found == nil && hasEnded {
			t.Fatalf("ended (%v) before it said %q", d.cmd.ProcessState, pattern)
		}
		return found != nil
	}, d.String)
	return found[len(found)-1]
}

func (d *runningProgram) hasEnded() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// signalAndWait sends a signal and returns the exit code.
func (d *runningProgram) signalAndWait(t *testing.T, signal syscall.Signal) int {
	t.Helper()
	must.Succeed(t, d.cmd.Process.Signal(signal))
	await.Receive(t, d.ended, "did not end")
	return d.cmd.ProcessState.ExitCode()
}

package child_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/child"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

const (
	patience = 20 * time.Second
	grace    = 300 * time.Millisecond
)

// TestMain runs the tests. If the last argument is "guard", this process is a guard of a child process. If it is
// "parent", the process runs a child until a test kills it.
func TestMain(m *testing.M) {
	os.Exit(testMain(m)) //nolint:forbidigo // TestMain's way to end
}

func testMain(m *testing.M) int {
	var err error
	switch os.Args[len(os.Args)-1] {
	case "guard":
		err = child.Guard(os.Stdin, os.Stdout, grace)
	case "parent":
		var c *child.Child
		if c, err = child.Start(newConfig(os.Stdout, time.Hour, "sh", "-c", "trap '' TERM; sleep 600 & echo ready; wait")); err == nil {
			return c.WaitExitCode()
		}
	default:
		return m.Run()
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func newConfig(out *os.File, term time.Duration, args ...string) child.Config {
	return child.Config{Args: args, Env: os.Environ(), Out: out, Err: os.Stderr, GuardArgs: []string{os.Args[0], "guard"}, Deadline: time.Now().Add(term)}
}

// startScript starts a shell script as a child that may run for term. It returns a scanner of the lines that the script prints.
func startScript(t *testing.T, term time.Duration, script string) (*child.Child, *bufio.Scanner) {
	t.Helper()
	out, in := newPipe(t)
	c, err := child.Start(newConfig(in, term, "sh", "-c", script))
	must.Succeed(t, err)
	_ = in.Close()
	return c, out
}

// newPipe returns the write end of a pipe, and a scanner of the lines that arrive through it. A read fails 20 s (patience) after the call
// of newPipe.
func newPipe(t *testing.T) (*bufio.Scanner, *os.File) {
	t.Helper()
	out, in, err := os.Pipe()
	must.Succeed(t, err)
	t.Cleanup(func() { _ = out.Close() })
	must.Succeed(t, out.SetReadDeadline(time.Now().Add(patience)))
	return bufio.NewScanner(out), in
}

func nextLine(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	if !lines.Scan() {
		t.Fatal("no further line: ", lines.Err())
	}
	return lines.Text()
}

// expectAllEnded waits until no process has the pipe open. Then all processes of the child's group have ended.
func expectAllEnded(t *testing.T, lines *bufio.Scanner) {
	t.Helper()
	for lines.Scan() {
		t.Log(lines.Text())
	}
	if err := lines.Err(); err != nil {
		t.Fatal("something still runs: ", err)
	}
}

func TestCodeIsThatOfTheCommand(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -TERM $$": 143, "kill -KILL $$": 137} {
		c, lines := startScript(t, time.Hour, script)
		expectAllEnded(t, lines)
		if got := c.WaitExitCode(); got != want {
			t.Errorf("%s: %d, want %d", script, got, want)
		}
	}
}

func TestACommandThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	must.Succeed(t, os.WriteFile(plain, nil, 0o600))
	for program, want := range map[string]int{"no-such-program": 127, "./no/such/program": 127, plain: 126} {
		_, err := child.Start(newConfig(os.Stdout, time.Hour, program))
		if err == nil || child.StartErrorCode(err) != want {
			t.Errorf("%s: %v, %d; want %d", program, err, child.StartErrorCode(err), want)
		}
	}
}

func TestSignalsReachAllOfTheGroup(t *testing.T) {
	t.Parallel()
	c, lines := startScript(t, time.Hour, `trap 'echo used' USR1; trap 'exit 5' TERM
		(trap 'echo inner used' USR1; trap 'exit' TERM; echo ready; while :; do sleep 0.05; done) & 
		echo ready; while :; do sleep 0.05; done`)
	nextLine(t, lines)
	nextLine(t, lines)
	c.Signal(syscall.SIGUSR1)
	said := nextLine(t, lines) + ", " + nextLine(t, lines)
	if said != "used, inner used" && said != "inner used, used" {
		t.Errorf("said %q", said)
	}
	c.Signal(syscall.SIGTERM)
	expectAllEnded(t, lines)
	if got := c.WaitExitCode(); got != 5 {
		t.Errorf("code %d", got)
	}
}

func TestWhatACommandLeavesBehindEndsWithIt(t *testing.T) {
	t.Parallel()
	c, lines := startScript(t, time.Hour, `trap '' TERM HUP; sleep 600 & exit 4`)
	expectAllEnded(t, lines)
	if got := c.WaitExitCode(); got != 4 {
		t.Errorf("code %d", got)
	}
}

func TestACommandEndsWithItsTerm(t *testing.T) {
	t.Parallel()
	c, lines := startScript(t, time.Hour, `trap 'echo asked' TERM; echo ready; sleep 600 & while :; do sleep 0.05; done`)
	nextLine(t, lines) // before the shell is ready, SIGTERM would end it
	began := time.Now()
	c.SetTimeLeft(700 * time.Millisecond)
	if got := nextLine(t, lines); got != "asked" {
		t.Errorf("said %q", got)
	}
	expectAllEnded(t, lines)
	if took := time.Since(began); took < 600*time.Millisecond {
		t.Errorf("it ended after %s, before its term", took)
	}
	if got := c.WaitExitCode(); got != 137 {
		t.Errorf("code %d", got)
	}
}

func TestATermThatIsExtended(t *testing.T) {
	t.Parallel()
	c, lines := startScript(t, 10*time.Minute, `trap 'echo asked; exit 6' TERM; echo ready; while :; do sleep 0.05; done`)
	nextLine(t, lines)
	c.SetTimeLeft(time.Hour)
	c.SetTimeLeft(grace)
	if got := nextLine(t, lines); got != "asked" {
		t.Errorf("said %q", got)
	}
	if got := c.WaitExitCode(); got != 6 {
		t.Errorf("code %d", got)
	}
}

// TestTheGroupEndsWithItsGuard kills the guard of a command. The process group of the command must end, too: without its guard, nothing would
// stop the command when its lease ends.
func TestTheGroupEndsWithItsGuard(t *testing.T) {
	t.Parallel()
	c, lines := startScript(t, time.Hour, `trap '' TERM; sleep 600 & read -r _ _ _ _ group _ < /proc/$$/stat; echo $group; while :; do sleep 0.05; done`)
	guard, err := strconv.Atoi(nextLine(t, lines))
	must.Succeed(t, err)
	must.Succeed(t, syscall.Kill(guard, syscall.SIGKILL))
	expectAllEnded(t, lines)
	if got := c.WaitExitCode(); got != 137 {
		t.Errorf("code %d", got)
	}
}

// TestATermThatIsOver starts a child whose deadline has already passed. The child must end at once: the grace time after SIGTERM gives it
// no more time.
func TestATermThatIsOver(t *testing.T) {
	t.Parallel()
	lines, in := newPipe(t)
	c, err := child.Start(newConfig(in, -time.Minute, "sh", "-c", `trap '' TERM; while :; do sleep 0.05; done`))
	_ = in.Close()
	if errors.Is(err, child.ErrDeadlinePassed) { // the guard ended before the shell began
		return
	}
	must.Succeed(t, err)
	expectAllEnded(t, lines)
	if got := c.WaitExitCode(); got != 137 && got != 143 {
		t.Errorf("code %d", got)
	}
}

// TestTheGroupEndsWithItsParent kills the parent of a child. The command and all processes of its group end.
func TestTheGroupEndsWithItsParent(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "crashed": syscall.SIGSEGV} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, in := newPipe(t)
			parent := exec.CommandContext(t.Context(), os.Args[0], "parent")
			parent.Stdout = in
			must.Succeed(t, parent.Start())
			_ = in.Close()
			nextLine(t, out)
			must.Succeed(t, parent.Process.Signal(kill))
			_ = parent.Wait()
			expectAllEnded(t, out)
		})
	}
}

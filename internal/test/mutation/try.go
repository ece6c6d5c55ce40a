package mutation

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// testTimeout is the time limit for the tests of one package. If the tests exceed it, they count as
// having caught the mistake.
const testTimeout = 4 * time.Minute

// Verdict is the result of the tests that ran with a mistake in the source.
type Verdict string

// These are the verdicts. Unbuildable means that the changed source does not compile. This shows nothing about the
// tests.
const (
	Caught      Verdict = "caught"
	Survived    Verdict = "survived"
	Unbuildable Verdict = "does not compile"
)

// Outcome is the result of one Try. CaughtBy is the test that failed first, in the form "package Test". If the tests
// hung, or failed outside of a test, CaughtBy is only the package.
type Outcome struct {
	Verdict  Verdict
	CaughtBy string
	Took     time.Duration
}

// Try applies the mistake m to the copy of the source, runs tests until one fails, and reverts the mistake. The
// test that caught the mistake before runs first, then the tests in the files that are named after the changed
// file, then all tests of the packages. In this order, most mistakes are caught in a few seconds. The tests run
// with -short and without the race detector.
func (c *Copy) Try(ctx context.Context, m Mistake) (out Outcome, err error) {
	begin := time.Now()
	undo, err := c.applyEdit(m.Edit)
	if err != nil {
		return Outcome{}, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	steps, err := c.listTestSteps(m)
	if err != nil {
		return Outcome{}, err
	}
	out.Verdict = Survived
	for _, args := range steps {
		if out.Verdict, out.CaughtBy, err = c.runTests(ctx, args...); err != nil {
			return Outcome{}, fmt.Errorf("testing %s: %w", args, err)
		}
		if out.Verdict != Survived {
			break
		}
	}
	out.Took = time.Since(begin)
	return out, nil
}

// listTestSteps returns the arguments of `go test` for the tests of a mistake, in the order in which they run.
func (c *Copy) listTestSteps(m Mistake) (steps [][]string, err error) {
	if pkg, test, found := strings.Cut(m.LastCaughtBy, " "); found {
		test, _, _ = strings.Cut(test, "/")
		steps = append(steps, []string{"-run=^" + test + "$", pkg})
	}
	pattern, err := c.nearbyTests(m.Edit.File)
	if err != nil {
		return nil, err
	}
	if pattern != "" {
		steps = append(steps, []string{"-run=" + pattern, "./" + filepath.Dir(m.Edit.File)})
	}
	for _, p := range m.Packages {
		steps = append(steps, []string{"./" + p})
	}
	return steps, nil
}

// runTests runs the tests of a package until the first failure. It does not wait for tests that run concurrently with the failed one. The
// result caughtBy names the failed test, in the form of Outcome.CaughtBy.
func (c *Copy) runTests(ctx context.Context, args ...string) (verdict Verdict, caughtBy string, err error) {
	temp, err := os.MkdirTemp("", "mutation-") // killed tests leave files behind
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	args = append([]string{"test", "-json", "-short", "-failfast", "-vet=off", "-trimpath", "-count=1", "-timeout=" + testTimeout.String()}, args...)
	failed, kill := context.WithCancel(ctx)
	defer kill()
	cmd := exec.CommandContext(failed, "go", args...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), "CI=true", "TMPDIR="+temp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // one process group with the servers that the tests have started
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", "", err
	}
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	verdict, caughtBy, last, readErr := findFirstFailure(stdout)
	if verdict != Survived {
		kill()
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case readErr != nil || verdict == Survived && err != nil:
		return "", "", fmt.Errorf("%w: %s%s", errors.Join(err, readErr), stderr.String(), last)
	default:
		return verdict, caughtBy, nil
	}
}

// testEvent has those fields of a line of `go test -json` that this package reads.
type testEvent struct {
	Action, Package, Test, FailedBuild string
}

// findFirstFailure reads the output of `go test -json` until the first test fails. The result caughtBy names this test, in the
// form of Outcome.CaughtBy. lastLine is the last line that was read.
func findFirstFailure(r io.Reader) (verdict Verdict, caughtBy, lastLine string, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		lastLine = lines.Text()
		var e testEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return "", "", lastLine, fmt.Errorf("reading %q: %w", lastLine, err)
		}
		switch {
		case e.Action != "fail":
		case e.FailedBuild != "":
			return Unbuildable, "", lastLine, nil
		default:
			return Caught, strings.TrimSpace(e.Package + " " + e.Test), lastLine, nil
		}
	}
	return Survived, "", lastLine, lines.Err()
}

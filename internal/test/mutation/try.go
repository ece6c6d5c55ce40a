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
	"strings"
	"time"
)

// testTimeout bounds the tests of one package. Tests that hang have noticed the mistake.
const testTimeout = 4 * time.Minute

// Verdict says what the tests made of a mistake.
type Verdict string

// The verdicts. Unbuildable says nothing about the tests: the change does not compile.
const (
	Caught      Verdict = "caught"
	Survived    Verdict = "survived"
	Unbuildable Verdict = "does not compile"
)

// Outcome is the result of one Try. By names the test that failed first as "package Test", or only the package if it hung, or if it
// ended outside of a test.
type Outcome struct {
	Verdict Verdict
	By      string
	Took    time.Duration
}

// Try makes the edit, runs the tests of packages one after the other until one fails, and takes the edit back. packages are folders
// relative to the root. The tests run with -short and without the race detector.
func (c *Copy) Try(ctx context.Context, e Edit, packages []string) (out Outcome, err error) {
	begin := time.Now()
	undo, err := c.make(e)
	if err != nil {
		return Outcome{}, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	out.Verdict = Survived
	for _, p := range packages {
		verdict, by, err := c.test(ctx, p)
		if err != nil {
			return Outcome{}, fmt.Errorf("testing %s: %w", p, err)
		}
		if verdict != Survived {
			out.Verdict, out.By = verdict, by
			break
		}
	}
	out.Took = time.Since(begin)
	return out, nil
}

func (c *Copy) test(ctx context.Context, pkg string) (verdict Verdict, by string, err error) {
	args := []string{"test", "-json", "-short", "-failfast", "-vet=off", "-count=1", "-timeout=" + testTimeout.String(), "./" + pkg}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), "CI=true")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if ctx.Err() != nil {
		return "", "", ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", "", err
	}
	if err == nil {
		return Survived, "", nil
	}
	verdict, by, parseErr := firstFailure(bytes.NewReader(stdout))
	if parseErr != nil || verdict == Survived {
		return "", "", fmt.Errorf("%w: %s%s", err, stderr.String(), tail(stdout))
	}
	return verdict, by, nil
}

// event is what this package reads of a line of `go test -json`.
type event struct {
	Action, Package, Test, FailedBuild string
}

// firstFailure reads the output of `go test -json` up to the first test that failed.
func firstFailure(r io.Reader) (verdict Verdict, by string, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return "", "", fmt.Errorf("reading %q: %w", lines.Text(), err)
		}
		switch {
		case e.Action != "fail":
		case e.FailedBuild != "":
			return Unbuildable, "", nil
		default:
			return Caught, strings.TrimSpace(e.Package + " " + e.Test), nil
		}
	}
	return Survived, "", lines.Err()
}

func tail(output []byte) []byte { return output[max(0, len(output)-2000):] }

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	maxTries      = 3             // maximum number of tries of a run that tests too little
	maxStall      = time.Second   // a run may test too little if the machine stalls for longer
	stallInterval = maxStall / 10 // interval of the stall detection
)

// verdict holds the findings of a run.
//
// A violation is a broken promise that the ledger, the journals of the devices or the external system show, or a run
// that never ends. The faults that the test injects (type fault) are no violations. A stall of the machine never
// excuses a violation: the measurements already exclude late devices and late readings. A doubt means that the run
// tested too little. Only a stall of the machine excuses a doubt.
type verdict struct {
	violations []error
	doubts     []error
	stalled    time.Duration // the longest time that the machine stalled
}

func (v *verdict) addViolation(format string, args ...any) {
	v.violations = append(v.violations, fmt.Errorf(format, args...))
}

func (v *verdict) addDoubt(format string, args ...any) {
	v.doubts = append(v.doubts, fmt.Errorf(format, args...))
}

// hasViolation reports whether one of the recorded violations contains these words.
func (v *verdict) hasViolation(words string) bool {
	return slices.ContainsFunc(v.violations, func(err error) bool { return strings.Contains(err.Error(), words) })
}

func (v *verdict) findings() error {
	return errors.Join(errors.Join(v.violations...), errors.Join(v.doubts...))
}

// outcome is the consequence of a verdict, such as that the run is repeated.
type outcome string

const (
	passed   outcome = "passed"
	failed   outcome = "failed"
	repeated outcome = "tried again"
	skipped  outcome = "skipped"
)

// outcomeAfter returns the outcome of a try. try is the number of the try, counted from 1. ci is true if the test runs
// under CI.
func (v *verdict) outcomeAfter(try int, ci bool) outcome {
	switch {
	case len(v.violations) > 0:
		return failed
	case len(v.doubts) == 0:
		return passed
	case v.stalled <= maxStall:
		return failed
	case try < maxTries:
		return repeated
	case ci:
		return failed
	}
	return skipped
}

// runJudged runs a test, and repeats it as long as the outcome demands a repetition.
func runJudged(t *testing.T, test func(t *testing.T, v *verdict)) {
	t.Helper()
	for try := 1; !t.Failed(); try++ {
		v := &verdict{}
		t.Run(fmt.Sprint("try ", try), func(t *testing.T) {
			watch := watchMachine(t.Context())
			test(t, v)
			v.stalled, _ = watch.stalls()
		})
		switch v.outcomeAfter(try, os.Getenv("CI") != "") {
		case passed:
			return
		case failed:
			t.Errorf("%v\nthis machine stood still for %s", v.findings(), v.stalled)
		case repeated:
			t.Logf("try %d does not count, this machine stood still for %s: %v", try, v.stalled, v.findings())
		case skipped:
			t.Skipf("no try counts, this machine stood still for %s: %v", v.stalled, v.findings())
		}
	}
}

// stallWatch measures how late the timers of this process fire, which shows when the machine stalls.
type stallWatch struct {
	mu           sync.Mutex
	longest, sum time.Duration
}

// watchMachine starts a stallWatch that measures until ctx ends.
func watchMachine(ctx context.Context) *stallWatch {
	w := &stallWatch{}
	go func() {
		for ctx.Err() == nil {
			before := time.Now()
			_ = pause(ctx, stallInterval)
			w.recordDelay(time.Since(before) - stallInterval)
		}
	}()
	return w
}

func (w *stallWatch) recordDelay(late time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest, w.sum = max(w.longest, late), w.sum+max(late, 0)
}

// stalls returns for how long the machine stalled: the longest stall, and the sum of all.
func (w *stallWatch) stalls() (longest, sum time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.longest, w.sum
}

// TestAFaultIsNeverExcused checks verdicts. A run that found a violation fails on any machine. A run with a doubt (it
// tested too little) fails only on a machine that did not stall. Under CI, the test also fails if every try has a
// doubt.
func TestAFaultIsNeverExcused(t *testing.T) {
	t.Parallel()
	fault, doubt := []error{errors.New("61 inside")}, []error{errors.New("never more than 3 inside")}
	for _, c := range []struct {
		name string
		verdict
		try  int
		ci   bool
		want outcome
	}{
		{"nothing was found", verdict{}, 1, true, passed},
		{"nothing was found on a machine that stood still", verdict{stalled: time.Hour}, 1, true, passed},
		{"a fault", verdict{violations: fault}, 1, false, failed},
		{"a fault on a machine that stood still", verdict{violations: fault, stalled: time.Hour}, 1, false, failed},
		{"a fault beside a doubt", verdict{violations: fault, doubts: doubt, stalled: time.Hour}, 1, false, failed},
		{"a doubt", verdict{doubts: doubt, stalled: maxStall}, 1, false, failed},
		{"a doubt on a machine that stood still", verdict{doubts: doubt, stalled: maxStall + 1}, maxTries - 1, true, repeated},
		{"no try counts", verdict{doubts: doubt, stalled: maxStall + 1}, maxTries, false, skipped},
		{"no try counts under CI", verdict{doubts: doubt, stalled: maxStall + 1}, maxTries, true, failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.outcomeAfter(c.try, c.ci); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestARunThatDoesNotCountIsMadeAgain checks a run with a doubt (it tested too little) on a machine that stalled:
// runJudged repeats it.
func TestARunThatDoesNotCountIsMadeAgain(t *testing.T) { //nolint:tparallel // tries come one after another
	t.Parallel()
	runs := 0
	runJudged(t, func(t *testing.T, v *verdict) {
		t.Helper()
		if runs++; runs < maxTries {
			v.addDoubt("too tame")
			t.Cleanup(func() { v.stalled = time.Hour })
		}
	})
	if runs != maxTries {
		t.Errorf("%d runs, want another one as long as none counts", runs)
	}
}

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
	tries = 3           // maximum number of tries of a run that tests too little
	still = time.Second // a run may test too little if the machine stalls for longer
	beat  = still / 10  // interval of the stall detection
)

// verdict holds the findings of a run.
//
// A fault is a violation that the ledger, the journals of the devices or the external system show, or a run that never ends. Nothing that
// the machine does excuses a fault. Where a violation is measured, the time of late devices and late readings is already excluded. A doubt
// means that the run tested too little. Only a stall of the machine excuses a doubt.
type verdict struct {
	faults []error
	doubts []error
	stood  time.Duration // the longest time that the machine stalled
}

func (v *verdict) blame(format string, args ...any) {
	v.faults = append(v.faults, fmt.Errorf(format, args...))
}

func (v *verdict) doubt(format string, args ...any) {
	v.doubts = append(v.doubts, fmt.Errorf(format, args...))
}

// says reports whether one of the faults contains words.
func (v *verdict) says(words string) bool {
	return slices.ContainsFunc(v.faults, func(err error) bool { return strings.Contains(err.Error(), words) })
}

func (v *verdict) found() error {
	return errors.Join(errors.Join(v.faults...), errors.Join(v.doubts...))
}

// sentence is the consequence of a verdict.
type sentence string

const (
	passed  sentence = "passed"
	failed  sentence = "failed"
	again   sentence = "tried again"
	skipped sentence = "skipped"
)

// after returns the sentence after this number of tries, under CI or not.
func (v *verdict) after(try int, ci bool) sentence {
	switch {
	case len(v.faults) > 0:
		return failed
	case len(v.doubts) == 0:
		return passed
	case v.stood <= still:
		return failed
	case try < tries:
		return again
	case ci:
		return failed
	}
	return skipped
}

// judged runs a test, and repeats it while the result is again.
func judged(t *testing.T, test func(t *testing.T, v *verdict)) {
	t.Helper()
	for try := 1; !t.Failed(); try++ {
		v := &verdict{}
		t.Run(fmt.Sprint("try ", try), func(t *testing.T) {
			watch := watchMachine(t.Context())
			test(t, v)
			v.stood, _ = watch.stood()
		})
		switch v.after(try, os.Getenv("CI") != "") {
		case passed:
			return
		case failed:
			t.Errorf("%v\nthis machine stood still for %s", v.found(), v.stood)
		case again:
			t.Logf("try %d does not count, this machine stood still for %s: %v", try, v.stood, v.found())
		case skipped:
			t.Skipf("no try counts, this machine stood still for %s: %v", v.stood, v.found())
		}
	}
}

// watch measures how late this process wakes up from its own timers.
type watch struct {
	mu           sync.Mutex
	longest, sum time.Duration
}

// watchMachine measures until ctx ends.
func watchMachine(ctx context.Context) *watch {
	w := &watch{}
	go func() {
		for ctx.Err() == nil {
			before := time.Now()
			_ = pause(ctx, beat)
			w.note(time.Since(before) - beat)
		}
	}()
	return w
}

func (w *watch) note(late time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest, w.sum = max(w.longest, late), w.sum+max(late, 0)
}

// stood returns how long the machine stalled: the longest time, and the sum.
func (w *watch) stood() (longest, sum time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.longest, w.sum
}

// TestAFaultIsNeverExcused checks that a fault fails on any machine, and a doubt on a machine that did not stall. Under CI, a try must
// count.
func TestAFaultIsNeverExcused(t *testing.T) {
	t.Parallel()
	fault, doubt := []error{errors.New("61 inside")}, []error{errors.New("never more than 3 inside")}
	for _, c := range []struct {
		name string
		verdict
		try  int
		ci   bool
		want sentence
	}{
		{"nothing was found", verdict{}, 1, true, passed},
		{"nothing was found on a machine that stood still", verdict{stood: time.Hour}, 1, true, passed},
		{"a fault", verdict{faults: fault}, 1, false, failed},
		{"a fault on a machine that stood still", verdict{faults: fault, stood: time.Hour}, 1, false, failed},
		{"a fault beside a doubt", verdict{faults: fault, doubts: doubt, stood: time.Hour}, 1, false, failed},
		{"a doubt", verdict{doubts: doubt, stood: still}, 1, false, failed},
		{"a doubt on a machine that stood still", verdict{doubts: doubt, stood: still + 1}, tries - 1, true, again},
		{"no try counts", verdict{doubts: doubt, stood: still + 1}, tries, false, skipped},
		{"no try counts under CI", verdict{doubts: doubt, stood: still + 1}, tries, true, failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := c.after(c.try, c.ci); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestARunThatDoesNotCountIsMadeAgain runs judged with a verdict of its own.
func TestARunThatDoesNotCountIsMadeAgain(t *testing.T) { //nolint:tparallel // tries come one after another
	t.Parallel()
	runs := 0
	judged(t, func(t *testing.T, v *verdict) {
		t.Helper()
		if runs++; runs < tries {
			v.doubt("too tame")
			t.Cleanup(func() { v.stood = time.Hour })
		}
	})
	if runs != tries {
		t.Errorf("%d runs, want another one as long as none counts", runs)
	}
}

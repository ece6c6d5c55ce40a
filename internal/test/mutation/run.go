package mutation

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Mistake is a change of the source after which a test of one of Packages should fail.
type Mistake struct {
	Name         string
	Edit         Edit
	Packages     []string
	LastCaughtBy string // Outcome.CaughtBy of an earlier run: this test runs first; empty if there was none
}

// Report counts the outcomes of a run. Caught and Survived do not include mistakes that do not compile.
type Report struct {
	Caught, Survived, Unbuildable int
	Survivors                     []string
	CaughtBy                      map[string]string // Outcome.CaughtBy of each mistake that was caught, by its name
}

// CaughtShare returns the share (0 to 1) of the mistakes that the tests caught. If no mistake was tried, it returns
// 1.
func (r Report) CaughtShare() float64 {
	if r.Caught+r.Survived == 0 {
		return 1
	}
	return float64(r.Caught) / float64(r.Caught+r.Survived)
}

// String returns the totals of the run and the mistakes that no test caught (survivors).
func (r Report) String() string {
	lines := []string{fmt.Sprintf("caught %d of %d (%.1f %%)", r.Caught, r.Caught+r.Survived, 100*r.CaughtShare())}
	if r.Unbuildable > 0 {
		lines = append(lines, fmt.Sprintf("%d did not compile and do not count", r.Unbuildable))
	}
	for _, s := range r.Survivors {
		lines = append(lines, "survived: "+s)
	}
	return strings.Join(lines, "\n") + "\n"
}

// Run tries all mistakes, with at most `workers` workers at a time. Each worker uses its own copy of the tree at
// root, below the folder bin. Run writes one line for each outcome to w.
func Run(ctx context.Context, w io.Writer, root string, workers int, mistakes []Mistake) (Report, error) {
	r := &run{next: make(chan Mistake), out: w, total: len(mistakes), report: Report{CaughtBy: map[string]string{}}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for i := range workers {
		c, err := NewCopy(ctx, root, filepath.Join(root, "bin", fmt.Sprintf("mutation-%d", i+1)))
		if err != nil {
			return Report{}, err
		}
		r.workers.Go(func() {
			if err := r.tryMistakes(ctx, c); err != nil {
				cancel(err)
			}
		})
	}
	for _, m := range mistakes {
		select {
		case r.next <- m:
		case <-ctx.Done():
		}
	}
	close(r.next)
	r.workers.Wait()
	return r.report, context.Cause(ctx)
}

type run struct {
	next    chan Mistake
	workers sync.WaitGroup
	total   int
	mu      sync.Mutex // guards out, done and report
	out     io.Writer
	done    int
	report  Report
}

func (r *run) tryMistakes(ctx context.Context, c *Copy) error {
	for m := range r.next {
		o, err := c.Try(ctx, m)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if err := r.recordOutcome(m, o); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) recordOutcome(m Mistake, o Outcome) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	switch o.Verdict {
	case Caught:
		r.report.Caught++
		r.report.CaughtBy[m.Name] = o.CaughtBy
	case Survived:
		r.report.Survived++
		r.report.Survivors = append(r.report.Survivors, m.Name)
	case Unbuildable:
		r.report.Unbuildable++
	}
	line := fmt.Sprintf("%d/%d %s: %s", r.done, r.total, o.Verdict, m.Name)
	if o.CaughtBy != "" {
		line += "\n\tby " + o.CaughtBy
	}
	_, err := fmt.Fprintf(r.out, "%s (%s)\n", line, o.Took.Round(time.Second))
	return err
}

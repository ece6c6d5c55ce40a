package waiters

import (
	"context"
	"errors"
	"testing"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// Background work panics. The panic must be reported, and no other work may end.
func TestPanicsAreTold(t *testing.T) {
	t.Parallel()
	reported := make(chan string, 1)
	b := &background{ctx: t.Context(), crew: rescue.ReportingGroup{OnPanic: func(doing string, _ *rescue.Panic) { reported <- doing }}}
	b.start(func(context.Context) { panic("by the test") })
	must.Succeed(t, b.stop(t.Context()))
	if doing := <-reported; doing != "handing off slots" {
		t.Errorf("told of %q", doing)
	}
}

func TestTurnGoesOnAfterAPanic(t *testing.T) {
	t.Parallel()
	calls, work := 0, &mergedWork[int]{merge: func(_, more int) int { return more }}
	work.runWork = func(_ context.Context, _ string, n int) error {
		if calls++; n == 1 {
			work.add("p", 2) // work that is added while the goroutine runs
			panic("by the test")
		}
		return nil
	}
	for range 2 {
		if !work.add("p", 1) {
			t.Fatal("the turn was never given back")
		}
		if _, ok := errors.AsType[*rescue.Panic](work.run(t.Context(), "p")); !ok {
			t.Error("the panic is not told")
		}
	}
	if calls != 4 {
		t.Errorf("%d calls, want 4", calls)
	}
}

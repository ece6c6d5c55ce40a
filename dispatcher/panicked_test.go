package dispatcher

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// A panic beside a report is counted, and the turn of its pool goes on.
func TestPanicsAreCounted(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	d := New(Config{Registerer: metrics})
	d.errands.start(func(context.Context) { panic("by the test") })
	if err := d.StopHandingOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, f := range families {
		if f.GetName() == "dispatcher_panics_total" {
			counted = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if counted != 1 {
		t.Errorf("%v panics counted, want 1", counted)
	}
}

func TestTurnGoesOnAfterAPanic(t *testing.T) {
	t.Parallel()
	turns, calls := newTurns(func(_, more int) int { return more }), 0
	do := func(n int) error {
		if calls++; n == 1 {
			turns.add("p", 2) // comes up meanwhile
			panic("by the test")
		}
		return nil
	}
	for range 2 {
		if !turns.add("p", 1) {
			t.Fatal("the turn was never given back")
		}
		if _, ok := errors.AsType[*rescue.Panic](turns.inTurn("p", do)); !ok {
			t.Error("the panic is not told")
		}
	}
	if calls != 4 {
		t.Errorf("%d calls, want 4", calls)
	}
}

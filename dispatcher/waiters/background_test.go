package waiters

import (
	"context"
	"errors"
	"testing"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// A panic beside a report is told, and ends nothing else.
func TestPanicsAreTold(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1)
	b := newBackground(func(doing string, _ *rescue.Panic) { told <- doing })
	b.start(func(context.Context) { panic("by the test") })
	if err := b.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if doing := <-told; doing != "handing on" {
		t.Errorf("told of %q", doing)
	}
}

func TestTurnGoesOnAfterAPanic(t *testing.T) {
	t.Parallel()
	serial, calls := newSerial(func(_, more int) int { return more }), 0
	do := func(n int) error {
		if calls++; n == 1 {
			serial.add("p", 2) // comes up meanwhile
			panic("by the test")
		}
		return nil
	}
	for range 2 {
		if !serial.add("p", 1) {
			t.Fatal("the turn was never given back")
		}
		if _, ok := errors.AsType[*rescue.Panic](serial.run("p", do)); !ok {
			t.Error("the panic is not told")
		}
	}
	if calls != 4 {
		t.Errorf("%d calls, want 4", calls)
	}
}

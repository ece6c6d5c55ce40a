package dispatcher

import (
	"testing"
	"time"
)

// Waits are foretold once enough of their like were right.
func TestWaitsAreForetoldOnceTheirLikeWereRight(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := newLineWaits()
	wait := func(ahead, lasted time.Duration) {
		l.refused("a", "d", time.Second, ahead, now)
		for rest := lasted; rest > 0; rest -= time.Second { // it asks every second
			now = now.Add(min(rest, time.Second))
			if rest > time.Second {
				l.refused("a", "d", time.Second, ahead/2, now)
			}
		}
		l.granted("a", "d", now)
	}
	for range leastWaits {
		if got := l.foretell("a", time.Minute); got != 0 {
			t.Fatalf("foretold %s from too few", got)
		}
		wait(time.Minute, 6*time.Second)
	}
	for range 20 { // the first ones were not foretold
		wait(time.Minute, 6*time.Second)
	}
	if got := l.foretell("a", 50*time.Second); got < 4900*time.Millisecond || got > 5100*time.Millisecond {
		t.Errorf("foretold %s, want a tenth of what is ahead", got)
	}
	if l.foretell("a", 10*time.Minute) != 0 || l.foretell("b", time.Minute) != 0 {
		t.Error("foretold what nothing was learned of")
	}
	// A device that was late waited for itself.
	l.refused("a", "d", time.Second, time.Minute, now)
	now = now.Add(time.Hour)
	l.granted("a", "d", now)
	if l.foretell("a", 50*time.Second) == 0 {
		t.Error("unlearned by a device that slept")
	}
	for i := range 20 { // a line without order
		wait(time.Minute, time.Duration(1+i%2*59)*time.Second)
	}
	if got := l.foretell("a", time.Minute); got != 0 {
		t.Errorf("foretold %s, and it is one second or a minute", got)
	}
}

package dispatcher

import (
	"testing"
	"time"
)

func TestHoldTimesFollow(t *testing.T) {
	t.Parallel()
	h := newHoldTimes()
	if got := h.mean("a"); got != unknownHold {
		t.Errorf("unknown pool: %s", got)
	}
	for range 100 {
		h.add("a", "k", 20*time.Second)
	}
	if got := h.mean("a"); got != 20*time.Second {
		t.Errorf("constant holds: %s", got)
	}
	for range 100 {
		h.add("a", "k", 2*time.Second)
	}
	if got := h.mean("a"); got < 2*time.Second || got > 3*time.Second {
		t.Errorf("after a change: %s, want about 2 s", got)
	}
}

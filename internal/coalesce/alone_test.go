package coalesce

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestACallerThatIsAloneMakesTheCallItself checks a caller while no other caller waits: it makes its call in its
// own goroutine.
func TestACallerThatIsAloneMakesTheCallItself(t *testing.T) {
	t.Parallel()
	own := 0
	c := newCalls(func(_ context.Context, _ string, all []int) ([]int, error) {
		stack := make([]byte, 64<<10)
		if strings.Contains(string(stack[:runtime.Stack(stack, false)]), t.Name()) {
			own++
		}
		return all, nil
	}, 3, 0)
	for range 3 {
		_, err := c.Do(t.Context(), "a", 1)
		must.Succeed(t, err)
	}
	if own != 3 || len(c.queues) > 0 {
		t.Errorf("%d of 3 calls were made by their caller; %d queues are left", own, len(c.queues))
	}
}

func TestACallerThatGaveUpBeforeIsNotCalledFor(t *testing.T) {
	t.Parallel()
	c := newCalls(func(context.Context, string, []int) ([]int, error) {
		t.Error("called")
		return []int{1}, nil
	}, 3, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Do(ctx, "a", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that its context ended", err)
	}
}

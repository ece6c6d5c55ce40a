package limits_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/limits"
)

// redisError is an error that Redis replied.
type redisError struct{}

func (redisError) Error() string { return "refused" }
func (redisError) RedisError()   {}

var _ redis.Error = redisError{}

// heldRedis is a fake Redis. It answers the question 1 only after the channel release is closed, so that later questions have to wait.
type heldRedis struct {
	release chan struct{}

	mu    sync.Mutex
	calls [][]int
}

func (h *heldRedis) send(questions []int) ([]int, error) {
	if questions[0] == 1 {
		<-h.release
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, questions)
	if slices.Contains(questions, 13) {
		return nil, redisError{}
	}
	return tenfold(questions), nil
}

func tenfold(questions []int) []int {
	answers := make([]int, len(questions))
	for i, q := range questions {
		answers[i] = 10 * q
	}
	return answers
}

// atCallLimit runs a test while the maximum number of concurrent calls to a fake Redis is in flight.
func atCallLimit(t *testing.T, test func(t *testing.T, h *heldRedis, ask func(context.Context, []int) ([]int, error))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		h := &heldRedis{release: make(chan struct{})}
		ask := limits.Ask(h.send)
		for range 2 {
			go func() { _, _ = ask(t.Context(), []int{1}) }()
			synctest.Wait()
		}
		test(t, h, ask)
	})
}

// TestQuestionsAskedMeanwhileGoTogether checks questions that arrive while the maximum number of calls is in flight. They must be sent
// together in one call, and every caller must get its own answers. An invalid question must not make the other questions fail.
func TestQuestionsAskedMeanwhileGoTogether(t *testing.T) {
	t.Parallel()
	questions := [][]int{{2, 3}, {4}, {5, 6, 7}, {13}}
	for calls, asked := range map[int][][]int{3: questions[:3], 7: questions} {
		atCallLimit(t, func(t *testing.T, h *heldRedis, ask func(context.Context, []int) ([]int, error)) {
			t.Helper()
			var all sync.WaitGroup
			for _, mine := range asked {
				all.Go(func() {
					answers, err := ask(t.Context(), mine)
					if mine[0] == 13 {
						if !errors.As(err, &redisError{}) {
							t.Errorf("of what is wrong: %v, %v", answers, err)
						}
					} else if err != nil || !slices.Equal(answers, tenfold(mine)) {
						t.Errorf("asked %v: %v, %v", mine, answers, err)
					}
				})
			}
			synctest.Wait()
			close(h.release)
			all.Wait()
			synctest.Wait()
			if len(h.calls) != calls {
				t.Errorf("sent %v, want %d calls", h.calls, calls)
			}
		})
	}
}

// TestWhoGivesUpHoldsUpNobody checks a caller whose context ends while its question waits. The caller must get an error, and the other
// callers must not be delayed.
func TestWhoGivesUpHoldsUpNobody(t *testing.T) {
	t.Parallel()
	atCallLimit(t, func(t *testing.T, h *heldRedis, ask func(context.Context, []int) ([]int, error)) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := ask(ctx, []int{2}); !errors.Is(err, context.Canceled) || !errors.Is(err, limits.ErrUnavailable) {
			t.Errorf("who gave up: %v", err)
		}
		close(h.release)
		synctest.Wait()
		if answers, err := ask(t.Context(), []int{3}); err != nil || !slices.Equal(answers, []int{30}) {
			t.Errorf("afterwards: %v, %v", answers, err)
		}
	})
}

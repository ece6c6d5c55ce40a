package limits_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/limits"
)

// refusal is an answer of Redis that is an error.
type refusal struct{}

func (refusal) Error() string { return "refused" }
func (refusal) RedisError()   {}

var _ redis.Error = refusal{}

// held lets questions of 1 through only when told, so that others wait behind them.
type held struct {
	release chan struct{}
	under   chan struct{}

	mu    sync.Mutex
	calls [][]int
}

func (h *held) send(questions []int) ([]int, error) {
	if questions[0] == 1 {
		h.under <- struct{}{}
		<-h.release
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, questions)
	if slices.Contains(questions, 13) {
		return nil, refusal{}
	}
	answers := make([]int, len(questions))
	for i, q := range questions {
		answers[i] = 10 * q
	}
	return answers, nil
}

// TestQuestionsAskedMeanwhileGoTogether: what is asked while calls are under way goes in one call, everybody
// gets their own answers, and what is wrong with one is no matter of the others.
func TestQuestionsAskedMeanwhileGoTogether(t *testing.T) {
	t.Parallel()
	for _, wrong := range []bool{false, true} {
		h := &held{release: make(chan struct{}), under: make(chan struct{})}
		ask := limits.Ask(h.send)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { _, _ = ask(t.Context(), []int{1}) })
			<-h.under
		}
		questions := [][]int{{2, 3}, {4}, {5, 6, 7}}
		if wrong {
			questions = append(questions, []int{13})
		}
		entered := make(chan struct{}, len(questions))
		for _, mine := range questions {
			all.Go(func() {
				ctx := &watched{Context: t.Context(), waits: entered}
				answers, err := ask(ctx, mine)
				if mine[0] == 13 {
					if !errors.As(err, &refusal{}) {
						t.Errorf("of what is wrong: %v, %v", answers, err)
					}
					return
				}
				want := make([]int, len(mine))
				for i, q := range mine {
					want[i] = 10 * q
				}
				if err != nil || !slices.Equal(answers, want) {
					t.Errorf("asked %v: %v, %v", mine, answers, err)
				}
			})
		}
		for range questions {
			<-entered
		}
		close(h.release)
		all.Wait()
		if got := len(h.calls); !wrong && got != 3 || wrong && got != 3+len(questions) {
			t.Errorf("sent %v", h.calls)
		}
	}
}

// watched tells when somebody waits for its end.
type watched struct {
	context.Context //nolint:containedctx // it is one

	waits chan struct{}
}

func (w *watched) Done() <-chan struct{} {
	w.waits <- struct{}{}
	return w.Context.Done()
}

// TestWhoGivesUpHoldsUpNobody: and is told so.
func TestWhoGivesUpHoldsUpNobody(t *testing.T) {
	t.Parallel()
	h := &held{release: make(chan struct{}), under: make(chan struct{})}
	ask := limits.Ask(h.send)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { _, _ = ask(t.Context(), []int{1}) })
		<-h.under
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ask(ctx, []int{2}); !errors.Is(err, context.Canceled) || !errors.Is(err, limits.ErrUnavailable) {
		t.Errorf("who gave up: %v", err)
	}
	close(h.release)
	all.Wait()
	if answers, err := ask(t.Context(), []int{3}); err != nil || !slices.Equal(answers, []int{30}) {
		t.Errorf("afterwards: %v, %v", answers, err)
	}
}

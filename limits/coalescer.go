package limits

import (
	"context"
	"errors"
	"slices"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// callsPerKey is the maximum number of concurrent calls with the same callKey. With 2, Redis can run one call while this process reads the
// reply to the other.
const callsPerKey = 2

// maxPerCall is the maximum number of questions in one call, because a script blocks Redis while it runs.
const maxPerCall = 200

// callKey contains the values that all questions of one call share.
type callKey struct{ scope, mode string }

// coalescer sends questions that arrive at the same time to Redis in one call. A question is a check, a settlement or a taking (a request
// to a limit set).
type coalescer[Q, A any] struct {
	coalesce.Calls[callKey, []Q, []A]
}

// newCoalescer returns a coalescer that calls send, which returns one answer for each question, in order.
func newCoalescer[Q, A any](send func(ctx context.Context, key callKey, questions []Q) ([]A, error)) *coalescer[Q, A] {
	return &coalescer[Q, A]{coalesce.Calls[callKey, []Q, []A]{
		MaxConcurrent: callsPerKey, MaxSize: maxPerCall, Size: func(questions []Q) int { return len(questions) },
		MayRetryAlone: func(err error) bool { return !redisconn.IsUnanswered(err) },
		Call: func(ctx context.Context, key callKey, all [][]Q) ([][]A, error) {
			answers, err := send(ctx, key, slices.Concat(all...))
			if err != nil {
				return nil, err
			}
			perCaller := make([][]A, len(all))
			for i, questions := range all {
				perCaller[i], answers = answers[:len(questions):len(questions)], answers[len(questions):]
			}
			return perCaller, nil
		},
	}}
}

func (c *coalescer[Q, A]) ask(ctx context.Context, key callKey, questions []Q) ([]A, error) {
	answers, err := c.Do(ctx, key, questions)
	if err != nil && !errors.Is(err, ErrUnavailable) && ctx.Err() != nil {
		err = wrapUnavailable(key.scope, err)
	}
	return answers, err
}

// sendInChunks calls send with at most maxPerCall questions at a time. After errNoPeriod it sends the same chunk once more: the reply has
// corrected the estimated clock of Redis.
func sendInChunks[Q, A any](questions []Q, send func(part []Q) ([]A, error)) ([]A, error) {
	var all []A
	for part := range slices.Chunk(questions, maxPerCall) {
		answers, err := send(part)
		if errors.Is(err, errNoPeriod) {
			answers, err = send(part)
		}
		if err != nil || len(part) == len(questions) {
			return answers, err
		}
		all = append(all, answers...)
	}
	return all, nil
}

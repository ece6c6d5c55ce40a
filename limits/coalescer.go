package limits

import (
	"context"
	"errors"
	"slices"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// callsPerKey is the maximum number of concurrent calls with the same callKey. It is 2 so that Redis can run one call while this process
// reads the replies of the other.
const callsPerKey = 2

// maxPerCall is the maximum number of checks, settlements or takings (requests to limit sets) in one call. There is a maximum because a
// script blocks Redis while it runs.
const maxPerCall = 200

// callKey contains the values that all questions of one call must share. A question is a check, a settlement or a taking (a request to a
// limit set).
type callKey struct{ scope, mode string }

// coalescer collects questions that arrive at the same time and sends them to Redis in one call. A question is a check, a settlement or a
// taking (a request to a limit set). The duration of a call is limited only by the timeouts of the Redis client.
type coalescer[Q, A any] struct {
	coalesce.Calls[callKey, []Q, []A]
}

// newCoalescer returns a coalescer that calls send for collected questions. send returns one answer for each question, in the same order.
func newCoalescer[Q, A any](send func(ctx context.Context, key callKey, questions []Q) ([]A, error)) *coalescer[Q, A] {
	return &coalescer[Q, A]{coalesce.Calls[callKey, []Q, []A]{
		MaxConcurrent: callsPerKey, MaxSize: maxPerCall, Size: func(questions []Q) int { return len(questions) },
		MayRetryAlone: func(err error) bool { return !redisconn.Unanswered(err) },
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

// ask sends questions (checks, settlements or takings) and returns an answer for each, in the same order. All questions share the values
// in key.
func (c *coalescer[Q, A]) ask(ctx context.Context, key callKey, questions []Q) ([]A, error) {
	answers, err := c.Do(ctx, key, questions)
	if err != nil && !errors.Is(err, ErrUnavailable) && ctx.Err() != nil {
		err = unavailable(key.scope, err)
	}
	return answers, err
}

// sendInChunks calls send with at most maxPerCall questions at a time, and returns the answers to all questions in their order. If send
// returns errNoPeriod, the reply has corrected the estimated clock of Redis, so sendInChunks sends this part once more.
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

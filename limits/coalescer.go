package limits

import (
	"context"
	"errors"
	"slices"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// callsPerKey is the maximum number of concurrent calls with the same callKey. It is 2, so that Redis can run one call while this process
// reads the reply to the other.
const callsPerKey = 2

// maxPerCall is the maximum number of questions in one call, because a script blocks Redis while it runs.
const maxPerCall = 200

// callKey contains the values that all questions of one call share.
type callKey struct{ scope, mode string }

// coalescer combines questions that arrive at the same time into one call to Redis. A question is a check, a settlement or a take.
type coalescer[Question, Reply any] struct {
	coalesce.Calls[callKey, []Question, []Reply]
}

// newCoalescer returns a coalescer that sends questions with the function send. send must return one reply for each question, in order.
func newCoalescer[Question, Reply any](send func(ctx context.Context, key callKey, questions []Question) ([]Reply, error)) *coalescer[Question, Reply] {
	return &coalescer[Question, Reply]{coalesce.Calls[callKey, []Question, []Reply]{
		MaxConcurrent: callsPerKey, MaxSize: maxPerCall, Size: func(questions []Question) int { return len(questions) },
		MayRetryAlone: func(err error) bool { return !redisconn.IsUnanswered(err) },
		Call: func(ctx context.Context, key callKey, all [][]Question) ([][]Reply, error) {
			answers, err := send(ctx, key, slices.Concat(all...))
			if err != nil {
				return nil, err
			}
			perCaller := make([][]Reply, len(all))
			for i, questions := range all {
				perCaller[i], answers = answers[:len(questions):len(questions)], answers[len(questions):]
			}
			return perCaller, nil
		},
	}}
}

// ask sends the questions, possibly together with questions of other callers, and returns one reply for each of its questions.
func (c *coalescer[Question, Reply]) ask(ctx context.Context, key callKey, questions []Question) ([]Reply, error) {
	answers, err := c.Do(ctx, key, questions)
	if err != nil && !errors.Is(err, ErrUnavailable) && ctx.Err() != nil {
		err = wrapUnavailable(key.scope, err)
	}
	return answers, err
}

// sendInChunks calls send with at most maxPerCall questions at a time, and returns all replies. If send returns errNoPeriod, sendInChunks sends
// the same chunk once more, because the first reply has corrected the estimated clock of Redis.
func sendInChunks[Question, Reply any](questions []Question, send func(part []Question) ([]Reply, error)) ([]Reply, error) {
	var all []Reply
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

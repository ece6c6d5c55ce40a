package limits

import (
	"context"
	"errors"
	"slices"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// callsOfLane is how many calls of a lane are under way at most: enough to keep Redis
// busy while the answers of one are read.
const callsOfLane = 2

// lane is what may go in one call.
type lane struct{ scope, mode string }

// gather sends what is asked at the same time in one call. The client's timeouts bound it.
type gather[Q, A any] struct {
	coalesce.Calls[lane, []Q, []A]
}

func newGather[Q, A any](send func(ctx context.Context, l lane, questions []Q) ([]A, error)) *gather[Q, A] {
	return &gather[Q, A]{coalesce.Calls[lane, []Q, []A]{
		Lanes: callsOfLane, Most: chunk, Size: func(questions []Q) int { return len(questions) },
		Alone: func(err error) bool { return !redisconn.Lost(err) },
		Call: func(ctx context.Context, l lane, all [][]Q) ([][]A, error) {
			answers, err := send(ctx, l, slices.Concat(all...))
			if err != nil {
				return nil, err
			}
			each := make([][]A, len(all))
			for i, questions := range all {
				each[i], answers = answers[:len(questions):len(questions)], answers[len(questions):]
			}
			return each, nil
		},
	}}
}

// ask returns an answer for each question.
func (g *gather[Q, A]) ask(ctx context.Context, l lane, questions []Q) ([]A, error) {
	answers, err := g.Do(ctx, l, questions)
	if err != nil && !errors.Is(err, ErrUnavailable) && ctx.Err() != nil {
		err = unavailable(l.scope, err)
	}
	return answers, err
}

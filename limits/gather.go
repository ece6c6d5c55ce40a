package limits

import (
	"context"
	"slices"
	"sync"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// callsOfLane is how many calls of a lane are under way at most: enough to keep Redis
// busy while the answers of one are read.
const callsOfLane = 2

// lane is what may go in one call.
type lane struct{ scope, mode string }

// gather sends what is asked at the same time in one call: what comes while calls
// are under way goes together when one of them returned. There is no timer, so who is
// alone waits for nobody.
type gather[Q, A any] struct {
	send func(ctx context.Context, l lane, questions []Q) ([]A, error) // an answer for each question

	mu    sync.Mutex
	lanes map[lane]*queue[Q, A]
}

// queue of a lane; there is one while something is under way.
type queue[Q, A any] struct {
	running int
	waiting []*asked[Q, A]
}

// asked are questions of one caller.
type asked[Q, A any] struct {
	questions []Q
	answers   []A
	err       error
	done      chan struct{}
}

func newGather[Q, A any](send func(ctx context.Context, l lane, questions []Q) ([]A, error)) *gather[Q, A] {
	rescued := func(ctx context.Context, l lane, questions []Q) (answers []A, err error) {
		err = rescue.Call(func() (err error) {
			answers, err = send(ctx, l, questions)
			return err
		})
		return answers, err
	}
	return &gather[Q, A]{send: rescued, lanes: make(map[lane]*queue[Q, A])}
}

// ask returns an answer for each question. Who gives up waiting may have been asked
// for all the same.
func (g *gather[Q, A]) ask(ctx context.Context, l lane, questions []Q) ([]A, error) {
	waiting := g.enter(l, questions)
	if waiting == nil {
		defer g.leave(ctx, l)
		return g.send(ctx, l, questions)
	}
	select {
	case <-waiting.done:
		return waiting.answers, waiting.err
	case <-ctx.Done():
		return nil, unavailable(l.scope, ctx.Err())
	}
}

// enter says what to wait for; nil: the caller sends its questions itself.
func (g *gather[Q, A]) enter(l lane, questions []Q) *asked[Q, A] {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.lanes[l]
	if q == nil {
		q = &queue[Q, A]{}
		g.lanes[l] = q
	}
	if q.running < callsOfLane {
		q.running++
		return nil
	}
	a := &asked[Q, A]{questions: questions, done: make(chan struct{})}
	q.waiting = append(q.waiting, a)
	return a
}

// leave ends a call. What came meanwhile goes on without the caller.
func (g *gather[Q, A]) leave(ctx context.Context, l lane) {
	if together := g.next(l); len(together) > 0 {
		ctx := context.WithoutCancel(ctx) // it is not the caller's any more; the client's timeouts bound it
		_ = rescue.Async(func() error {
			g.goOn(ctx, l, together)
			return nil
		})
	}
}

func (g *gather[Q, A]) goOn(ctx context.Context, l lane, together []*asked[Q, A]) {
	for ; len(together) > 0; together = g.next(l) {
		g.sendTogether(ctx, l, together)
	}
}

// next takes what goes in one call; none: the call is over.
func (g *gather[Q, A]) next(l lane) []*asked[Q, A] {
	g.mu.Lock()
	defer g.mu.Unlock()
	q, n, size := g.lanes[l], 0, 0
	for n < len(q.waiting) && (n == 0 || size+len(q.waiting[n].questions) <= chunk) {
		size += len(q.waiting[n].questions)
		n++
	}
	together := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	if n == 0 {
		if q.running--; q.running == 0 {
			delete(g.lanes, l)
		}
	}
	return together
}

// sendTogether answers all. When Redis refuses, each is sent alone: what is wrong with
// one is no matter of the others.
func (g *gather[Q, A]) sendTogether(ctx context.Context, l lane, together []*asked[Q, A]) {
	var questions []Q
	for _, a := range together {
		questions = append(questions, a.questions...)
	}
	answers, err := g.send(ctx, l, questions)
	for _, a := range together {
		switch {
		case err != nil && len(together) > 1 && !redisconn.Lost(err):
			a.answers, a.err = g.send(ctx, l, a.questions)
		case err != nil:
			a.err = err
		default:
			a.answers = slices.Clone(answers[:len(a.questions)])
			answers = answers[len(a.questions):]
		}
		close(a.done)
	}
}

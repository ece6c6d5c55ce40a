package limits

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/limits/policy"
)

// NewWithLocalClock returns a limiter whose local clock the test sets. No result of the limiter may depend on this
// clock.
func NewWithLocalClock(client redis.UniversalClient, localNow func() time.Time) *Limiter {
	l := New(client)
	l.Reservations.conn.clock.local = localNow // all parts share this clock
	return l
}

// SetSettleWithin changes how long a reservation may stay open before it is overdue.
func (l *Limiter) SetSettleWithin(d time.Duration) {
	s, r := newScripts(d), l.Reservations
	r.reserve, r.settle, r.overdue, l.Rebuilder.fill = s.reserve, s.settle, s.overdue, s.fill
}

// Boundaries returns the starts of four calendar periods: the period that contains the time in the parameter around, the period before it, and
// the next two, in the order of time.
func Boundaries(period policy.Period, zone *time.Location, around time.Time) [4]time.Time {
	return periodStarts(period, zone, around)
}

// LongestWindow returns the length of the rule's longest window.
func (r *Rule) LongestWindow() time.Duration { return r.longestWindow }

// SubjectKey returns the Redis key in which the rule counts the starts of a subject.
func SubjectKey(scope string, r *Rule, s Subject) string { return r.keysInScope(scope).subjectKey(s) }

// Ask returns a function that sends concurrent questions together, by means of the coalescer of a limiter.
func Ask(send func(questions []int) ([]int, error)) func(ctx context.Context, questions []int) ([]int, error) {
	g := newCoalescer(func(_ context.Context, _ callKey, questions []int) ([]int, error) { return send(questions) })
	return func(ctx context.Context, questions []int) ([]int, error) {
		return g.ask(ctx, callKey{scope: "s"}, questions)
	}
}

// CandidateListKey returns the last part of the Redis key that holds the candidates of a rule (subjects with high
// use).
func CandidateListKey(r *Rule) string { return r.id + r.policyHash }

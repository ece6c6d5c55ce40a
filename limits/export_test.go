package limits

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// NewAt returns a limiter on a local clock of the test, which nothing may depend on.
func NewAt(client redis.UniversalClient, local func() time.Time) *Limiter {
	l := New(client)
	l.Reservations.clock.local = local // all parts share the clock
	return l
}

// SettlesWithin changes how long a reservation may be open.
func (l *Limiter) SettlesWithin(d time.Duration) {
	s, r := newScripts(d), l.Reservations
	r.reserve, r.settle, r.overdue, l.Rebuilder.fill = s.reserve, s.settle, s.overdue, s.fill
}

// AsList is a sliding rule that keeps lists whatever its size.
func AsList(r *Rule) *Rule { return r.as("L") }

// AsPacked is a sliding rule that packs its times whatever its size.
func AsPacked(r *Rule) *Rule { return r.as("P") }

func (r *Rule) as(kind string) *Rule {
	other := r.anew("/" + kind)
	other.spec = kind + strings.TrimLeft(other.spec, "PL")
	return other
}

func (r *Rule) anew(owner string) *Rule {
	if r.ofSet {
		return newRuleOfSet(r.Owner+owner, r.Policy)
	}
	return newRule(r.Owner+owner, r.Policy)
}

// WithoutShortcut is a rule that quick.lua leaves to the long way.
func WithoutShortcut(r *Rule) *Rule {
	other := r.anew("/long")
	other.spec += " " // read as the same, but of no known form
	return other
}

// Boundaries of a calendar.
func Boundaries(period Period, zone *time.Location, around time.Time) [4]time.Time {
	return boundaries(period, zone, around)
}

// SubjectKey is where a subject is kept.
func SubjectKey(scope string, r *Rule, s Subject) string { return r.in(scope).subject(s) }

// Ask sends what is asked at the same time together, as a limiter does.
func Ask(send func(questions []int) ([]int, error)) func(ctx context.Context, questions []int) ([]int, error) {
	g := newCoalescer(func(_ context.Context, _ lane, questions []int) ([]int, error) { return send(questions) })
	return func(ctx context.Context, questions []int) ([]int, error) {
		return g.ask(ctx, lane{scope: "s"}, questions)
	}
}

// ListOf names the list of who used most of a rule.
func ListOf(r *Rule) string { return r.id + r.shown }

package limits

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// labels is of how many the refusals are kept: in Redis of an hour, here until told.
const labels = 256

// refused counts refusals until Redis is told of them: a check does not wait for it.
type refused struct {
	mu  sync.Mutex
	all map[string]map[string]int64 // scope -> "policy|label" -> how often
}

func newRefused() *refused { return &refused{all: make(map[string]map[string]int64)} }

// add counts the refusals of answers, but for those by reservations alone; full: they
// should be told now.
func (r *refused) add(scope string, checks []Check, answers []Answer) (full bool) {
	for i, a := range answers {
		for _, refusal := range a.Refusals {
			if !refusal.Pending {
				item := checks[i].Items[refusal.Item]
				full = r.one(scope, item.Rule.Name+"|"+item.Subject.Label) || full
			}
		}
	}
	return full
}

func (r *refused) one(scope, label string) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.all[scope]
	if counts == nil {
		counts = make(map[string]int64)
		r.all[scope] = counts
	}
	counts[label]++
	return len(counts) >= labels
}

func (r *refused) take(scope string) map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.all[scope]
	delete(r.all, scope)
	return counts
}

func (r *refused) scopes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.all))
}

// Tell tells Redis what this limiter noted for people: what was refused, for Top, and who used
// much, for Highest. Call it every ten seconds or so. Numbers that cannot be told are forgotten.
func (l *Limiter) Tell(ctx context.Context) error {
	var errs []error
	for _, scope := range l.refused.scopes() {
		errs = append(errs, l.tellRefused(ctx, scope))
	}
	for _, scope := range l.noted.scopes() {
		errs = append(errs, l.tellUsed(ctx, scope))
	}
	return errors.Join(errs...)
}

func (l *Limiter) tellRefused(ctx context.Context, scope string) error {
	counts := l.refused.take(scope)
	if len(counts) == 0 {
		return nil
	}
	args := []any{labels}
	for label, n := range counts {
		args = append(args, label, n)
	}
	_, err := l.runAtMost(ctx, 1, l.scripts.note, scope, keysOfTop(scope), args) // not twice: it would count twice
	return err
}

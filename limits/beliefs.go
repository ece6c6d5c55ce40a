package limits

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// maxBeliefs bounds how many are kept; looking again costs a call.
const maxBeliefs = 10_000

// beliefs are in which life of Redis each rule was looked at last: what it knows from
// then on is of that life. By the keys of rules, since a rule may be in several scopes.
type beliefs struct {
	all  sync.Map // key of a rule -> name of a life
	many atomic.Int64
}

func (b *beliefs) holds(key, life string) bool {
	known, _ := b.all.Load(key)
	return known == life
}

func (b *beliefs) hold(keys []string, life string) {
	if b.many.Add(int64(len(keys))) > maxBeliefs {
		b.all.Clear()
		b.many.Store(int64(len(keys)))
	}
	for _, key := range keys {
		b.all.Store(key, life)
	}
}

// believe makes the rules unknown that were filled in another life of Redis.
func (l *Limiter) believe(ctx context.Context, scope, life string, checks []Check) error {
	var keys []string
	for _, c := range checks {
		for _, item := range c.Items {
			if key := item.Rule.in(scope).key; !l.beliefs.holds(key, life) && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	all := make([]any, len(keys))
	for i, key := range keys {
		all[i] = key
	}
	if _, err := l.run(ctx, l.scripts.believe, scope, all, []any{life}); err != nil {
		return err
	}
	l.beliefs.hold(keys, life)
	return nil
}

// still says whether a life goes on, after an answer came.
func (l *Limiter) still(ctx context.Context, scope, life string) error {
	now, err := l.lives.of(ctx, scope)
	if err == nil && now != life {
		err = unavailable(scope, errStarted)
	}
	return err
}

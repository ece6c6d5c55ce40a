package limits

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// maxChecked bounds how many rules are remembered; checking one again costs a call.
const maxChecked = 10_000

// checkedEpochs remembers in which epoch of Redis each rule was checked last: what Redis
// knows of it from then on is of that epoch. It goes by the keys of rules, since a rule may
// be in several scopes.
type checkedEpochs struct {
	all  sync.Map // key of a rule -> name of an epoch
	many atomic.Int64
}

func (c *checkedEpochs) has(key, epoch string) bool {
	known, _ := c.all.Load(key)
	return known == epoch
}

func (c *checkedEpochs) add(keys []string, epoch string) {
	if c.many.Add(int64(len(keys))) > maxChecked {
		c.all.Clear()
		c.many.Store(int64(len(keys)))
	}
	for _, key := range keys {
		c.all.Store(key, epoch)
	}
}

// dropOlder makes the rules unknown that were filled in another epoch of Redis.
func (l *Limiter) dropOlder(ctx context.Context, scope, epoch string, checks []Check) error {
	var keys []string
	for _, c := range checks {
		for _, item := range c.Items {
			if key := item.Rule.in(scope).key; !l.checked.has(key, epoch) && !slices.Contains(keys, key) {
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
	if _, err := l.run(ctx, l.scripts.epoch, scope, all, []any{epoch}); err != nil {
		return err
	}
	l.checked.add(keys, epoch)
	return nil
}

// sameEpoch fails if Redis has begun a new epoch since: it is asked after an answer came.
func (l *Limiter) sameEpoch(ctx context.Context, scope, epoch string) error {
	now, err := l.epochs.of(ctx, scope)
	if err == nil && now != epoch {
		err = unavailable(scope, errNewEpoch)
	}
	return err
}

package limits

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Usage says how subjects stand to their rules, which may be those of pools, too, and changes
// nothing. Counted is what Redis has of starts that happened: reservations are not in it.
func (l *Limiter) Usage(ctx context.Context, scope string, items []Item) ([]Standing, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	out, err := l.usage(ctx, scope, items)
	if errors.Is(err, errNewEpoch) {
		out, err = l.usage(ctx, scope, items)
	}
	return out, err
}

func (l *Limiter) usage(ctx context.Context, scope string, items []Item) ([]Standing, error) {
	epoch, err := l.epochs.of(ctx, scope)
	if err != nil {
		return nil, err
	}
	takings, starts := make([]Taking, len(items)), Check{}
	for i, item := range items {
		takings[i] = Taking{Cost: 1, Items: []Item{item}}
		if !item.Rule.ofSet {
			starts.Items = append(starts.Items, item)
		}
	}
	if err := l.dropOlder(ctx, scope, epoch, []Check{starts}); err != nil {
		return nil, err
	}
	out := make([]Standing, 0, len(items))
	for part := range slices.Chunk(takings, chunk) {
		taken, err := l.takePart(ctx, lane{scope, modePeek}, epoch, part)
		if err != nil {
			return nil, err
		}
		for i, t := range taken {
			s := t.Items[0]
			if !part[i].Items[0].Rule.ofSet && !t.Since.IsZero() {
				s = Standing{Unknown: true}
			}
			out = append(out, s)
		}
	}
	return out, l.sameEpoch(ctx, scope, epoch)
}

// Use is how a subject stands to a rule.
type Use struct {
	Item
	Standing
}

// Hidden is the same for a reader to whom the policy does not reveal its subjects.
func (u Use) Hidden() Use {
	if u.Rule.Reveal {
		u.Subject.Label = strings.Join(u.Rule.perEach, " ") + "#" + u.Subject.digest[:8]
	}
	return u
}

// share of the maximum that is used.
func (s Standing) share() float64 { return float64(s.Used) / float64(max(s.Max, 1)) }

// Highest returns up to limit subjects of rules that used most of their maximum, with what they
// use now. The numbers are exact. The choice of the subjects is not: of each rule, those that were the
// highest when they counted last, a few hundred at most. Those of other processes are among
// them once they told (Tell).
func (l *Limiter) Highest(ctx context.Context, scope string, rules []*Rule, limit int) ([]Use, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	if err := l.tellUsed(ctx, scope); err != nil {
		return nil, err
	}
	uses, err := l.rank(ctx, scope, rules, min(max(4*limit, 64), labels))
	if err != nil {
		return nil, err
	}
	uses = slices.DeleteFunc(uses, func(u Use) bool { return u.Used == 0 })
	slices.SortFunc(uses, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.share(), a.share()), cmp.Compare(b.Used, a.Used), cmp.Compare(a.Rule.Name, b.Rule.Name), cmp.Compare(a.Subject.Label, b.Subject.Label))
	})
	return uses[:min(max(limit, 0), len(uses))], nil
}

// highestKey is where the candidates of a rule are kept: a ZSET of digests with labels, by
// the share that they used. A policy that shows other labels has another one.
func (r *Rule) highestKey(scope string) string { return prefix(scope) + "h:" + r.id + r.shown }

func (s Subject) member() string { return s.digest + "|" + s.Label }

func subjectOfMember(member string) (Subject, bool) {
	const digest = 22
	if len(member) <= digest {
		return Subject{}, false
	}
	return Subject{digest: member[:digest], Label: member[digest+1:]}, true
}

// rank reads so many candidates of each rule, and notes what they use now.
func (l *Limiter) rank(ctx context.Context, scope string, rules []*Rule, most int) ([]Use, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	read, err := l.pipe(ctx, scope, func(p redis.Pipeliner) {
		for _, r := range rules {
			p.ZRevRange(ctx, r.highestKey(scope), 0, int64(most)-1)
		}
	})
	if err != nil {
		return nil, err
	}
	var items []Item
	for i, cmd := range read {
		for _, member := range cmd.(*redis.StringSliceCmd).Val() { //nolint:forcetypeassert,errcheck // see above
			if s, ok := subjectOfMember(member); ok {
				items = append(items, Item{Rule: rules[i], Subject: s})
			}
		}
	}
	uses, _, err := l.score(ctx, scope, items)
	return uses, err
}

// score writes by what share candidates used their rules, and says which rules have many.
func (l *Limiter) score(ctx context.Context, scope string, items []Item) (uses []Use, full []*Rule, err error) {
	standings, err := l.Usage(ctx, scope, items)
	if err != nil || len(items) == 0 {
		return nil, nil, err
	}
	scores, ended := make(map[*Rule][]redis.Z), make(map[*Rule][]any)
	for i, item := range items {
		uses = append(uses, Use{item, standings[i]})
		if standings[i].Used == 0 && !standings[i].Unknown {
			ended[item.Rule] = append(ended[item.Rule], item.Subject.member())
		} else {
			scores[item.Rule] = append(scores[item.Rule], redis.Z{Score: standings[i].share(), Member: item.Subject.member()})
		}
	}
	var counted []*Rule
	said, err := l.pipe(ctx, scope, func(p redis.Pipeliner) {
		counted = nil
		for r, members := range ended {
			p.ZRem(ctx, r.highestKey(scope), members...)
		}
		for r, members := range scores {
			p.ZAdd(ctx, r.highestKey(scope), members...)
			p.PExpire(ctx, r.highestKey(scope), max(r.longest, time.Minute))
		}
		for r := range scores {
			counted = append(counted, r)
			p.ZCard(ctx, r.highestKey(scope))
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for i, cmd := range said[len(said)-len(counted):] {
		if cmd.(*redis.IntCmd).Val() > 2*labels { //nolint:forcetypeassert,errcheck // see above
			full = append(full, counted[i])
		}
	}
	return uses, full, nil
}

// tellUsed tells Redis of the subjects that were noted. Where too many are kept, what they
// use now decides which stay.
func (l *Limiter) tellUsed(ctx context.Context, scope string) error {
	_, full, err := l.score(ctx, scope, l.noted.take(scope))
	if err != nil || len(full) == 0 {
		return err
	}
	if _, err = l.rank(ctx, scope, full, 4*labels); err != nil {
		return err
	}
	_, err = l.pipe(ctx, scope, func(p redis.Pipeliner) {
		for _, r := range full {
			p.ZRemRangeByRank(ctx, r.highestKey(scope), 0, -labels-1)
		}
	})
	return err
}

// pipe sends commands that may be sent again.
func (l *Limiter) pipe(ctx context.Context, scope string, commands func(redis.Pipeliner)) (sent []redis.Cmder, err error) {
	err = l.breakers.Do(ctx, prefix(scope), sends, func() error {
		p := l.client.Pipeline()
		commands(p)
		sent, err = p.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, unavailable(scope, err)
	}
	return sent, nil
}

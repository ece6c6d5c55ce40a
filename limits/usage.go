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

// Usage reads how much subjects have used of their rules.
type Usage struct {
	conn   *connection
	epochs *epochs
	uses   *useCounts
	takes  *Takes
}

// ReadUses returns how much of its rule the subject of each item has used. It changes nothing. The rules may
// be rules that count starts or rules of a limit set. Open reservations do not count as used.
func (u *Usage) ReadUses(ctx context.Context, scope string, items []Item) ([]SubjectUse, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	uses, err := u.readInEpoch(ctx, scope, items)
	if errors.Is(err, errNewEpoch) {
		uses, err = u.readInEpoch(ctx, scope, items)
	}
	return uses, err
}

func (u *Usage) readInEpoch(ctx context.Context, scope string, items []Item) ([]SubjectUse, error) {
	epoch, err := u.epochs.currentEpoch(ctx, scope)
	if err != nil {
		return nil, err
	}
	takings, starts := make([]Taking, len(items)), Check{}
	for i, item := range items {
		takings[i] = Taking{Cost: 1, Items: []Item{item}}
		if !item.Rule.isSetRule {
			starts.Items = append(starts.Items, item)
		}
	}
	if err = u.epochs.dropOlderRules(ctx, scope, epoch, []Check{starts}); err != nil {
		return nil, err
	}
	taken, err := u.takes.askInEpoch(ctx, callKey{scope, modePeek}, epoch, takings)
	if err != nil {
		return nil, err
	}
	uses := make([]SubjectUse, len(items))
	for i, t := range taken {
		uses[i] = SubjectUse{items[i], t.Items[0]}
		if !items[i].Rule.isSetRule && !t.Since.IsZero() {
			uses[i].WindowUse = WindowUse{Unknown: true}
		}
	}
	return uses, u.epochs.requireEpoch(ctx, scope, epoch)
}

// SubjectUse says how much of a rule one of its subjects has used.
type SubjectUse struct {
	Item
	WindowUse
}

// Redacted returns a copy of u for a reader who may not see the values of subjects: if the policy reveals
// these values, the label is replaced with a digest.
func (u SubjectUse) Redacted() SubjectUse {
	if u.Rule.Reveal {
		u.Subject.Label = strings.Join(u.Rule.perFields, " ") + "#" + u.Subject.digest[:8]
	}
	return u
}

// usedShare returns the used share of the maximum: Used / Max.
func (s WindowUse) usedShare() float64 { return float64(s.Used) / float64(max(s.Max, 1)) }

// Highest returns, with their current use, at most limit subjects that have used the largest share of the
// maximum of their rule. The numbers are exact, but the choice of subjects is not: Highest considers, for
// each rule, only a few hundred candidates, those with the highest use when they last counted. Subjects that
// other processes counted are included after these processes called Publish.
func (u *Usage) Highest(ctx context.Context, scope string, rules []*Rule, limit int) ([]SubjectUse, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	if err := u.publishScope(ctx, scope); err != nil {
		return nil, err
	}
	uses, err := u.readCandidates(ctx, scope, rules, min(max(4*limit, 64), maxLabels))
	if err != nil {
		return nil, err
	}
	uses = slices.DeleteFunc(uses, func(one SubjectUse) bool { return one.Used == 0 })
	slices.SortFunc(uses, func(a, b SubjectUse) int {
		return cmp.Or(cmp.Compare(b.usedShare(), a.usedShare()), cmp.Compare(b.Used, a.Used), cmp.Compare(a.Rule.Name, b.Rule.Name), cmp.Compare(a.Subject.Label, b.Subject.Label))
	})
	return uses[:min(max(limit, 0), len(uses))], nil
}

// Publish adds the subjects that this process counted to the candidates in Redis, from which Highest chooses.
// Call it about every ten seconds. Subjects that cannot be added are lost.
func (u *Usage) Publish(ctx context.Context) error {
	return u.uses.publish(ctx, u.publishScope)
}

// publishScope adds the subjects of a scope to the candidates in Redis (see Highest). If Redis has too many
// candidates of a rule, it keeps only the candidates with the highest current use.
func (u *Usage) publishScope(ctx context.Context, scope string) error {
	_, full, err := u.storeScores(ctx, scope, u.uses.takeItems(scope))
	if err != nil || len(full) == 0 {
		return err
	}
	if _, err = u.readCandidates(ctx, scope, full, 4*maxLabels); err != nil {
		return err
	}
	_, err = u.conn.pipeline(ctx, scope, func(p redis.Pipeliner) {
		for _, r := range full {
			p.ZRemRangeByRank(ctx, r.highestKey(scope), 0, -maxLabels-1)
		}
	})
	return err
}

// highestKey returns the key of the candidates of a rule (see Highest): a ZSET whose members are digests with
// labels and whose scores are used shares. A policy whose labels look different has another key.
func (r *Rule) highestKey(scope string) string { return keyPrefix(scope) + "h:" + r.id + r.policyHash }

func (s Subject) member() string { return s.digest + "|" + s.Label }

func parseMember(member string) (Subject, bool) {
	const digest = 22
	if len(member) <= digest {
		return Subject{}, false
	}
	return Subject{digest: member[:digest], Label: member[digest+1:]}, true
}

// readCandidates reads at most limit candidates of each rule (see Highest), updates their scores in Redis,
// and returns their current use.
func (u *Usage) readCandidates(ctx context.Context, scope string, rules []*Rule, limit int) ([]SubjectUse, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	read, err := u.conn.pipeline(ctx, scope, func(p redis.Pipeliner) {
		for _, r := range rules {
			p.ZRevRange(ctx, r.highestKey(scope), 0, int64(limit)-1)
		}
	})
	if err != nil {
		return nil, err
	}
	var items []Item
	for i, cmd := range read {
		for _, member := range cmd.(*redis.StringSliceCmd).Val() { //nolint:forcetypeassert,errcheck // each command is a ZRevRange
			if s, ok := parseMember(member); ok {
				items = append(items, Item{Rule: rules[i], Subject: s})
			}
		}
	}
	uses, _, err := u.storeScores(ctx, scope, items)
	return uses, err
}

// storeScores stores for each item, as the score of its subject, the share of the rule that the subject uses
// now. It returns these uses in uses, and in full the rules that have more than 2*maxLabels candidates.
func (u *Usage) storeScores(ctx context.Context, scope string, items []Item) (uses []SubjectUse, full []*Rule, err error) {
	uses, err = u.ReadUses(ctx, scope, items)
	if err != nil || len(items) == 0 {
		return nil, nil, err
	}
	scores, ended := make(map[*Rule][]redis.Z), make(map[*Rule][]any)
	for _, one := range uses {
		if one.Used == 0 && !one.Unknown {
			ended[one.Rule] = append(ended[one.Rule], one.Subject.member())
		} else {
			scores[one.Rule] = append(scores[one.Rule], redis.Z{Score: one.usedShare(), Member: one.Subject.member()})
		}
	}
	var counted []*Rule
	replies, err := u.conn.pipeline(ctx, scope, func(p redis.Pipeliner) {
		counted = nil
		for r, members := range ended {
			p.ZRem(ctx, r.highestKey(scope), members...)
		}
		for r, members := range scores {
			p.ZAdd(ctx, r.highestKey(scope), members...)
			p.PExpire(ctx, r.highestKey(scope), max(r.longestWindow, time.Minute))
		}
		for r := range scores {
			counted = append(counted, r)
			p.ZCard(ctx, r.highestKey(scope))
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for i, cmd := range replies[len(replies)-len(counted):] {
		if cmd.(*redis.IntCmd).Val() > 2*maxLabels { //nolint:forcetypeassert,errcheck // the last commands are ZCards
			full = append(full, counted[i])
		}
	}
	return uses, full, nil
}

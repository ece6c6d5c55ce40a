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

// Usage reads how much of the limit of each rule a subject has used.
type Usage struct {
	conn   *connection
	epochs *epochs
	uses   *useCounts
	takes  *Takes
}

// ReadUses returns how much of its rule the subject of each item has used in a scope. Open reservations do not count as used.
func (u *Usage) ReadUses(ctx context.Context, scopeName string, items []Item) ([]SubjectUse, error) {
	if err := checkScope(scopeName); err != nil {
		return nil, err
	}
	uses, err := u.readUsesInOneEpoch(ctx, scopeName, items)
	if errors.Is(err, errNewEpoch) {
		uses, err = u.readUsesInOneEpoch(ctx, scopeName, items)
	}
	return uses, err
}

// readUsesInOneEpoch returns the uses of items, or errNewEpoch if Redis may have lost data during the call.
func (u *Usage) readUsesInOneEpoch(ctx context.Context, scopeName string, items []Item) ([]SubjectUse, error) {
	epoch, err := u.epochs.currentEpoch(ctx, scopeName)
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
	if err = u.epochs.forgetOutdatedRules(ctx, scopeName, epoch, []Check{starts}); err != nil {
		return nil, err
	}
	taken, err := u.takes.askInEpoch(ctx, callKey{scopeName, modePeek}, epoch, takings)
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
	return uses, u.epochs.requireEpoch(ctx, scopeName, epoch)
}

// SubjectUse is the use of a rule by one of its subjects.
type SubjectUse struct {
	Item
	WindowUse
}

// Redacted returns a copy of u for a reader who may not see the values of subjects. In the copy, a digest replaces a revealed label.
func (u SubjectUse) Redacted() SubjectUse {
	if u.Rule.Reveal {
		u.Subject.Label = strings.Join(u.Rule.perFields, " ") + "#" + u.Subject.digest[:8]
	}
	return u
}

func (s WindowUse) usedShare() float64 { return float64(s.Used) / float64(max(s.Max, 1)) }

// HighestUses returns at most limit subjects that have used the largest share of the maximum of their rule. The returned numbers are exact and
// current. But HighestUses considers only a few hundred candidates of each rule: the subjects with the highest use when their use was last
// counted. It includes candidates of other processes after they have called Publish.
func (u *Usage) HighestUses(ctx context.Context, scopeName string, rules []*Rule, limit int) ([]SubjectUse, error) {
	if err := checkScope(scopeName); err != nil {
		return nil, err
	}
	if err := u.publishScope(ctx, scopeName); err != nil {
		return nil, err
	}
	uses, err := u.readUsesOfCandidates(ctx, scopeName, rules, min(max(4*limit, 64), maxLabels))
	if err != nil {
		return nil, err
	}
	uses = slices.DeleteFunc(uses, func(one SubjectUse) bool { return one.Used == 0 })
	slices.SortFunc(uses, func(a, b SubjectUse) int {
		return cmp.Or(cmp.Compare(b.usedShare(), a.usedShare()), cmp.Compare(b.Used, a.Used), cmp.Compare(a.Rule.Name, b.Rule.Name), cmp.Compare(a.Subject.Label, b.Subject.Label))
	})
	return uses[:min(max(limit, 0), len(uses))], nil
}

// Publish adds the subjects that this process counted to the candidates in Redis, from which HighestUses chooses. Call it about every ten
// seconds. Subjects that cannot be added are lost.
func (u *Usage) Publish(ctx context.Context) error {
	return u.uses.publish(ctx, u.publishScope)
}

// publishScope adds the recorded subjects of a scope to the candidates in Redis. If a rule has too many candidates, publishScope keeps the
// candidates with the highest current use.
func (u *Usage) publishScope(ctx context.Context, scopeName string) error {
	_, full, err := u.storeUseScores(ctx, scopeName, u.uses.removeRecordedItems(scopeName))
	if err != nil || len(full) == 0 {
		return err
	}
	if _, err = u.readUsesOfCandidates(ctx, scopeName, full, 4*maxLabels); err != nil {
		return err
	}
	_, err = u.conn.sendPipeline(ctx, scopeName, func(p redis.Pipeliner) {
		for _, r := range full {
			p.ZRemRangeByRank(ctx, r.candidatesKey(scopeName), 0, -maxLabels-1)
		}
	})
	return err
}

// candidatesKey returns the key of a ZSET with the candidates of a rule in a scope. Its members are digests with labels, and its scores are the
// used shares. The key contains r.policyHash, because a change of the policy may change the labels.
func (r *Rule) candidatesKey(scopeName string) string {
	return keyPrefix(scopeName) + "h:" + r.id + r.policyHash
}

func (s Subject) candidateMember() string { return s.digest + "|" + s.Label }

func parseCandidateMember(member string) (subject Subject, ok bool) {
	const digest = 22
	if len(member) <= digest {
		return Subject{}, false
	}
	return Subject{digest: member[:digest], Label: member[digest+1:]}, true
}

// readUsesOfCandidates reads at most limitPerRule candidates of each rule (subjects that may have the highest use). It updates their scores in
// Redis and returns their current use.
func (u *Usage) readUsesOfCandidates(ctx context.Context, scopeName string, rules []*Rule, limitPerRule int) ([]SubjectUse, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	read, err := u.conn.sendPipeline(ctx, scopeName, func(p redis.Pipeliner) {
		for _, r := range rules {
			p.ZRevRange(ctx, r.candidatesKey(scopeName), 0, int64(limitPerRule)-1)
		}
	})
	if err != nil {
		return nil, err
	}
	var items []Item
	for i, cmd := range read {
		for _, member := range cmd.(*redis.StringSliceCmd).Val() { //nolint:errcheck // each command is a ZRevRange
			if s, ok := parseCandidateMember(member); ok {
				items = append(items, Item{Rule: rules[i], Subject: s})
			}
		}
	}
	uses, _, err := u.storeUseScores(ctx, scopeName, items)
	return uses, err
}

// storeUseScores reads the current use of items and stores the used shares as scores in Redis. full has the rules with more than 2*maxLabels
// candidates.
func (u *Usage) storeUseScores(ctx context.Context, scopeName string, items []Item) (uses []SubjectUse, full []*Rule, err error) {
	uses, err = u.ReadUses(ctx, scopeName, items)
	if err != nil || len(items) == 0 {
		return nil, nil, err
	}
	scores, ended := make(map[*Rule][]redis.Z), make(map[*Rule][]any)
	for _, one := range uses {
		if one.Used == 0 && !one.Unknown {
			ended[one.Rule] = append(ended[one.Rule], one.Subject.candidateMember())
		} else {
			scores[one.Rule] = append(scores[one.Rule], redis.Z{Score: one.usedShare(), Member: one.Subject.candidateMember()})
		}
	}
	var counted []*Rule
	replies, err := u.conn.sendPipeline(ctx, scopeName, func(p redis.Pipeliner) {
		counted = nil
		for r, members := range ended {
			p.ZRem(ctx, r.candidatesKey(scopeName), members...)
		}
		for r, members := range scores {
			p.ZAdd(ctx, r.candidatesKey(scopeName), members...)
			p.PExpire(ctx, r.candidatesKey(scopeName), max(r.longestWindow, time.Minute))
		}
		for r := range scores {
			counted = append(counted, r)
			p.ZCard(ctx, r.candidatesKey(scopeName))
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for i, cmd := range replies[len(replies)-len(counted):] {
		if cmd.(*redis.IntCmd).Val() > 2*maxLabels { //nolint:errcheck // the last commands are ZCards
			full = append(full, counted[i])
		}
	}
	return uses, full, nil
}

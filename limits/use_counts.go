package limits

import (
	"maps"
	"slices"
)

// useCounts records how much of each rule its subjects have used. It keeps the subjects with the highest use.
type useCounts struct {
	unpublished[*ruleUses] // key: id of the rule
}

type ruleUses struct {
	rule     *Rule
	subjects map[string]*countedSubject // key: digest of the subject
}

type countedSubject struct {
	Subject

	used int64
}

// record sets how much of a rule its subject has used. If used is 0, it adds one to the recorded value.
func (u *useCounts) record(scope string, item Item, used int64) {
	u.change(scope, item.Rule.id, func(uses *ruleUses) *ruleUses {
		if uses == nil {
			uses = &ruleUses{subjects: make(map[string]*countedSubject)}
		}
		uses.rule = item.Rule
		one := uses.subjects[item.Subject.digest]
		if one == nil {
			one = &countedSubject{Subject: item.Subject}
			uses.subjects[item.Subject.digest] = one
		}
		if used == 0 {
			used = one.used + 1
		}
		if one.used = used; len(uses.subjects) > 2*maxLabels {
			uses.prune()
		}
		return uses
	})
}

// prune deletes all subjects except the maxLabels subjects with the highest use.
func (r *ruleUses) prune() {
	all := slices.SortedFunc(maps.Values(r.subjects), func(a, b *countedSubject) int { return int(b.used - a.used) })
	for _, one := range all[maxLabels:] {
		delete(r.subjects, one.digest)
	}
}

// takeItems returns the subjects of a scope and deletes them.
func (u *useCounts) takeItems(scope string) (items []Item) {
	for _, uses := range u.take(scope) {
		for _, one := range uses.subjects {
			items = append(items, Item{Rule: uses.rule, Subject: one.Subject})
		}
	}
	return items
}

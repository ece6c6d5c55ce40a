package limits

import (
	"maps"
	"slices"
)

// useCounts records, for each scope and rule, the subjects with the highest use.
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

// recordUse stores used as the amount that the subject of item has used of its rule. If used is 0, it adds 1 to the stored amount.
func (u *useCounts) recordUse(scopeName string, item Item, used int64) {
	u.updateValue(scopeName, item.Rule.id, func(uses *ruleUses) *ruleUses {
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
			uses.pruneSubjects()
		}
		return uses
	})
}

// pruneSubjects deletes all subjects but the maxLabels subjects with the highest use.
func (r *ruleUses) pruneSubjects() {
	all := slices.SortedFunc(maps.Values(r.subjects), func(a, b *countedSubject) int { return int(b.used - a.used) })
	for _, one := range all[maxLabels:] {
		delete(r.subjects, one.digest)
	}
}

// removeRecordedItems removes and returns the rules and subjects that are recorded for a scope.
func (u *useCounts) removeRecordedItems(scopeName string) (items []Item) {
	for _, uses := range u.removeScope(scopeName) {
		for _, one := range uses.subjects {
			items = append(items, Item{Rule: uses.rule, Subject: one.Subject})
		}
	}
	return items
}

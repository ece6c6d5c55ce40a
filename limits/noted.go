package limits

import (
	"slices"
	"sync"
)

// noted are the subjects that used much of their rules, as candidates for Highest, until Redis
// is told of them: a check does not wait for it. Of each rule it keeps those that used most.
type noted struct {
	mu  sync.Mutex
	all map[string]map[string]*notedRule // scope -> id of a rule
}

type notedRule struct {
	rule     *Rule
	subjects map[string]*notedSubject // by their digests
}

type notedSubject struct {
	Subject

	used int64
}

func newNoted() *noted { return &noted{all: make(map[string]map[string]*notedRule)} }

// use notes how much of a rule a subject used; 0: one more than before.
func (n *noted) use(scope string, item Item, used int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rules := n.all[scope]
	if rules == nil {
		rules = make(map[string]*notedRule)
		n.all[scope] = rules
	}
	of := rules[item.Rule.id]
	if of == nil {
		of = &notedRule{subjects: make(map[string]*notedSubject)}
		rules[item.Rule.id] = of
	}
	of.rule = item.Rule
	one := of.subjects[item.Subject.digest]
	if one == nil {
		one = &notedSubject{Subject: item.Subject}
		of.subjects[item.Subject.digest] = one
	}
	if used == 0 {
		used = one.used + 1
	}
	if one.used = used; len(of.subjects) > 2*labels {
		of.prune()
	}
}

func (r *notedRule) prune() {
	all := make([]*notedSubject, 0, len(r.subjects))
	for _, one := range r.subjects {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *notedSubject) int { return int(b.used - a.used) })
	for _, one := range all[labels:] {
		delete(r.subjects, one.digest)
	}
}

// take returns what was noted in a scope, once.
func (n *noted) take(scope string) (items []Item) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, of := range n.all[scope] {
		for _, one := range of.subjects {
			items = append(items, Item{Rule: of.rule, Subject: one.Subject})
		}
	}
	delete(n.all, scope)
	return items
}

func (n *noted) scopes() (all []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for scope := range n.all {
		all = append(all, scope)
	}
	return all
}

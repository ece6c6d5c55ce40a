package limits

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check asks whether one start may happen now.
type Check struct {
	Lease string // unique per start; must not contain '|'
	// Checks with the same Group are alternatives. At most one of them leads to a start, so a check does not count the reservations of its
	// Group. Independent starts need different Groups. Count and Release accept an empty Group. Group must not contain '|'.
	Group string
	Items []Item // all items must allow the start; a check without items passes
}

// Item is one rule of a check, with the subject for which the rule counts.
type Item struct {
	Rule    *Rule
	Subject Subject
}

// NewCheck returns the check of a start with these facts against all rules.
func NewCheck(leaseID, group string, rules []*Rule, facts Facts) Check {
	return Check{Lease: leaseID, Group: group, Items: NewItems(rules, facts)}
}

// NewItems returns one item for each rule, with the subject of a start with these facts.
func NewItems(rules []*Rule, facts Facts) []Item {
	items := make([]Item, len(rules))
	for i, r := range rules {
		items[i] = Item{Rule: r, Subject: r.Subject(facts)}
	}
	return items
}

func validateAll[C interface{ validate() error }](scopeName string, elements []C) error {
	if err := checkScope(scopeName); err != nil {
		return err
	}
	for _, one := range elements {
		if err := one.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (c Check) validate() error {
	if c.Lease == "" || strings.IndexByte(c.Lease, '|') >= 0 || strings.IndexByte(c.Group, '|') >= 0 {
		return fmt.Errorf("%w: lease %q is empty, or the lease or its group %q contains '|'", ErrInvalid, c.Lease, c.Group)
	}
	return nil
}

// appendItems appends two keys for each item to keys: the key of its rule and the key of its subject. It appends to args the spec that each rule
// has at the time now.
func appendItems(keys, args []any, scopeName string, items []Item, now time.Time) (allKeys, allArgs []any) {
	for _, item := range items {
		cached := item.Rule.keysInScope(scopeName)
		keys, args = append(keys, cached.ruleArg, cached.subjectKey(item.Subject)), append(args, item.Rule.scriptSpecAt(now))
	}
	return keys, args
}

// Status is the result of a Check.
type Status int

// The results of a Check. Their numbers must be equal to the numbers in lua/keys.lua.
const (
	// StatusUnknown means that Redis does not know a rule of the check. Call Rebuilder.Rebuild.
	StatusUnknown Status = iota
	// StatusLimited means that the start is refused now. Nothing was counted.
	StatusLimited
	// StatusPassed means that the start may happen.
	StatusPassed
	// StatusUnsettled means that a reservation of the scope has been open for longer than SettleWithin (see Reservations.Overdue).
	StatusUnsettled
	// statusNoPeriod means that the script received calendar periods, but the time of Redis is in none of them.
	statusNoPeriod
)

// Answer is the answer to one Check.
type Answer struct {
	Status   Status
	Refusals []ItemRefusal // with StatusLimited, one for each item that refuses the start
}

// ItemRefusal describes an item of a check that refuses the start now.
type ItemRefusal struct {
	Item    int           // index of the item in the check
	Window  int           // the index of the window that blocks the start longest
	Wait    time.Duration // time until the window allows a start, to the millisecond
	Oldest  time.Duration // the age of the oldest start that blocks the window
	Pending bool          // only open reservations block the window; they will be settled soon, so Wait is 0
}

// LongestRefusal returns the refusal with the longest Wait. a.Refusals must not be empty.
func (a Answer) LongestRefusal() ItemRefusal {
	return slices.MaxFunc(a.Refusals, func(x, y ItemRefusal) int { return int(x.Wait - y.Wait) })
}

// readAnswers decodes the answers in a reply of reserve.lua. reply is the reply without its first number, the time of Redis.
func readAnswers(reply []int64) (answers []Answer) {
	for len(reply) >= 2 {
		a, n := Answer{Status: Status(reply[0])}, int(reply[1])
		reply = reply[2:]
		for e := range slices.Chunk(reply[:5*n], 5) {
			a.Refusals = append(a.Refusals, ItemRefusal{
				Item: int(e[0]), Window: int(e[1]), Wait: millisToDuration(e[2]), Oldest: millisToDuration(e[3]), Pending: e[4] == 1,
			})
		}
		answers, reply = append(answers, a), reply[5*n:]
	}
	return answers
}

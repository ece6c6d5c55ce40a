package limits

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check asks whether one start may happen.
type Check struct {
	Lease string // unique per start; no '|'
	Group string // checks of one group are alternatives: at most one of them starts; no '|'
	Items []Item // all must let the start pass; without items it passes
}

// Item is one subject of a rule.
type Item struct {
	Rule    *Rule
	Subject Subject
}

// NewCheck returns the check of a start by rules.
func NewCheck(lease, group string, rules []*Rule, f Facts) Check {
	return Check{Lease: lease, Group: group, Items: NewItems(rules, f)}
}

// NewItems returns the subject of f for each rule.
func NewItems(rules []*Rule, f Facts) []Item {
	items := make([]Item, len(rules))
	for i, r := range rules {
		items[i] = Item{Rule: r, Subject: r.Subject(f)}
	}
	return items
}

// validateAll returns ErrInvalid if the scope or one of all is invalid.
func validateAll[C interface{ validate() error }](scope string, all []C) error {
	if err := checkScope(scope); err != nil {
		return err
	}
	for _, one := range all {
		if err := one.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (c Check) validate() error {
	if c.Lease == "" || strings.IndexByte(c.Lease, '|') >= 0 || strings.IndexByte(c.Group, '|') >= 0 {
		return fmt.Errorf("%w: lease %q of group %q", ErrInvalid, c.Lease, c.Group)
	}
	return nil
}

// appendItems appends what the scripts are sent of items: two keys and the spec of each.
func appendItems(keys, args []any, scope string, items []Item, now time.Time) (allKeys, allArgs []any) {
	for _, item := range items {
		in := item.Rule.in(scope)
		keys, args = append(keys, in.rule, in.subject(item.Subject)), append(args, item.Rule.specAt(now))
	}
	return keys, args
}

// Status answers a Check.
type Status int

// The answers to a Check.
const (
	// StatusUnknown: Redis does not know a rule. Call Rebuild.
	StatusUnknown Status = iota
	// StatusLimited: the start is refused now. Nothing was counted.
	StatusLimited
	// StatusPassed: the start may happen.
	StatusPassed
	// StatusUnsettled: reservations are overdue. See Overdue.
	StatusUnsettled
	// statusNoPeriod: the time of Redis is in none of the calendar periods that the script was sent.
	statusNoPeriod
)

// Answer to one Check.
type Answer struct {
	Status   Status
	Refusals []Refusal // with StatusLimited: one for each item that refuses
	Item     int       // with StatusUnknown: the index of the first item whose rule is not known
}

// Refusal describes an item of a check that refuses the start now.
type Refusal struct {
	Item    int           // the index of the item
	Window  int           // the index of the window that opens last
	Wait    time.Duration // until the window opens
	Oldest  time.Duration // the age of the oldest start that keeps the window shut
	Pending bool          // only reservations keep the window shut, which are settled soon; Wait is 0
}

// Last returns the refusal that opens last.
func (a Answer) Last() Refusal {
	return slices.MaxFunc(a.Refusals, func(x, y Refusal) int { return int(x.Wait - y.Wait) })
}

// readAnswers reads the reply of reserve.lua without the time.
func readAnswers(reply []int64) (out []Answer) {
	for len(reply) >= 2 {
		a, n := Answer{Status: Status(reply[0])}, int(reply[1])
		reply = reply[2:]
		for e := range slices.Chunk(reply[:5*n], 5) {
			if a.Status != StatusLimited {
				a.Item = int(e[0])
				continue
			}
			a.Refusals = append(a.Refusals, Refusal{
				Item: int(e[0]), Window: int(e[1]), Wait: millis(e[2]), Oldest: millis(e[3]), Pending: e[4] == 1,
			})
		}
		out, reply = append(out, a), reply[5*n:]
	}
	return out
}

package policies

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/limits"
)

// Take is what a caller asks a set for.
type Take struct {
	Caller string // whose id it is: two callers may number alike
	ID     string // sent again with the same facts and cost it is counted once; empty: each time
	Facts  map[string]string
	Cost   int64 // at least 1
}

// Verdict is what a set says to a Take.
type Verdict struct {
	limits.Taken
	Rules     []*limits.Rule // of Items, in their order
	Unchecked bool           // Redis did not answer: Allowed is what the policies say to that, and there are no Items
}

// ownID tells ids of different callers apart.
func (t Take) ownID() string {
	if t.ID == "" {
		return ""
	}
	return fmt.Sprintf("%d:%s%s", len(t.Caller), t.Caller, t.ID)
}

// CostError is a Take that no policy could ever allow.
type CostError struct {
	Take   int // its index
	Policy string
	Most   int64 // that it allows at once
}

// Error names the policy.
func (e *CostError) Error() string {
	return fmt.Sprintf("policy %s allows a cost of %d at most", e.Policy, e.Most)
}

// uncheckedAgain is when to ask again what could not be checked.
const uncheckedAgain = time.Second

// Take counts each of the takes whose facts the policies of the set allow it; each stands alone.
// A take that cannot be checked is answered by on_error. store.ErrNotFound, a CostError, and
// devices.ErrUnavailable when the set cannot be read.
func (s *Sets) Take(ctx context.Context, set string, takes []Take) ([]Verdict, error) {
	known, verdicts, err := s.ask(ctx, set, takes, Takes.Take)
	for _, v := range verdicts {
		known.counts.count(v)
	}
	return verdicts, err
}

// Peek says what Take would, and counts nothing.
func (s *Sets) Peek(ctx context.Context, set string, takes []Take) ([]Verdict, error) {
	_, verdicts, err := s.ask(ctx, set, takes, Takes.Peek)
	return verdicts, err
}

func (s *Sets) ask(
	ctx context.Context, name string, takes []Take, how func(Takes, context.Context, string, []limits.Taking) ([]limits.Taken, error),
) (*knownSet, []Verdict, error) {
	set, err := s.of(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	takings, err := set.takings(takes)
	if err != nil {
		return nil, nil, err
	}
	taken, err := []limits.Taken(nil), errNoLimits
	if s.config.Limits != nil {
		taken, err = how(s.config.Limits.Takes, ctx, setScope(name), takings)
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err() // nobody hears it any more
	}
	if err != nil {
		s.config.Logger.WarnContext(ctx, "takes cannot be checked", "limit_set", name, "err", err)
		return set, set.unchecked(len(takes)), nil
	}
	verdicts := make([]Verdict, len(taken))
	for i, t := range taken {
		verdicts[i] = Verdict{Taken: t, Rules: set.rules}
	}
	return set, verdicts, nil
}

func (k *knownSet) takings(takes []Take) ([]limits.Taking, error) {
	takings := make([]limits.Taking, len(takes))
	for i, t := range takes {
		for _, r := range k.rules {
			if t.Cost > r.MaxCost() {
				return nil, &CostError{i, r.Name, r.MaxCost()}
			}
		}
		takings[i] = limits.NewTaking(t.ownID(), t.Cost, k.rules, limits.Facts{Facts: t.Facts})
	}
	return takings, nil
}

// unchecked are verdicts without Redis: allowed only if all policies say so.
func (k *knownSet) unchecked(n int) []Verdict {
	v := Verdict{Unchecked: true, Rules: k.rules}
	if v.Allowed = failsOpen(k.rules); !v.Allowed {
		v.Wait = uncheckedAgain
	}
	return slices.Repeat([]Verdict{v}, n)
}

// Return gives back what was not used of the take of that id and those facts. It says how much
// of it was given back by now: sent again it gives back nothing more. Errors are those of Take,
// and limits.ErrUnavailable.
func (s *Sets) Return(ctx context.Context, set string, t Take) (int64, error) {
	known, err := s.asked(ctx, set)
	if err != nil {
		return 0, err
	}
	takings, err := known.takings([]Take{t})
	if err != nil {
		return 0, err
	}
	returned, err := s.config.Limits.Takes.Return(ctx, setScope(set), takings)
	if err != nil {
		return 0, fmt.Errorf("giving back to limit set %s: %w", set, err)
	}
	return returned[0], nil
}

// Usage says what the subject of these facts used of each policy. Errors are those of Return.
func (s *Sets) Usage(ctx context.Context, set string, facts map[string]string) ([]limits.Use, error) {
	known, err := s.asked(ctx, set)
	if err != nil {
		return nil, err
	}
	uses, err := s.config.Limits.Usage.ReadUses(ctx, setScope(set), limits.NewItems(known.rules, limits.Facts{Facts: facts}))
	if err != nil {
		return nil, fmt.Errorf("usage of limit set %s: %w", set, err)
	}
	return uses, nil
}

// Highest are up to limit subjects that used most of their maximum. Errors are those of Return.
func (s *Sets) Highest(ctx context.Context, set string, limit int) ([]limits.Use, error) {
	known, err := s.asked(ctx, set)
	if err != nil {
		return nil, err
	}
	uses, err := s.config.Limits.Usage.Highest(ctx, setScope(set), known.rules, limit)
	if err != nil {
		return nil, fmt.Errorf("highest usage of limit set %s: %w", set, err)
	}
	return uses, nil
}

// asked is a set of which Redis is asked.
func (s *Sets) asked(ctx context.Context, set string) (*knownSet, error) {
	if s.config.Limits == nil {
		return nil, errNoLimits
	}
	return s.of(ctx, set)
}

// Outcomes of takes in the metric, but for refused.
const (
	allowed = iota
	repeated
	uncheckedAllowed
	uncheckedRefused
	outcomesOfTakes
)

// outcomes count the takes of a set.
type outcomes struct {
	of        [outcomesOfTakes]prometheus.Counter // none of refused: it has the labels of a policy
	refusedBy []prometheus.Counter                // by the index of the policy in the set
}

func (o *outcomes) count(v Verdict) {
	switch by := v.RefusedBy(); {
	case v.OtherCost: // a mistake of its caller
	case v.Unchecked && v.Allowed:
		o.of[uncheckedAllowed].Inc()
	case v.Unchecked:
		o.of[uncheckedRefused].Inc()
	case v.Repeated:
		o.of[repeated].Inc()
	case v.Allowed:
		o.of[allowed].Inc()
	case by >= 0:
		o.refusedBy[by].Inc()
	}
}

const (
	refusedTake = "refused" // the outcome that has a policy and a kind

	policiesOfSet = 20 // names of one set with series of their own
	otherPolicy   = "other"
)

// refusal holds the labels of a policy that refuses takes.
type refusal struct{ policy, kind string }

// refusalOf returns the labels of the policy with this index in its set.
func refusalOf(index int, r *limits.Rule) refusal {
	kind := map[limits.Algorithm]string{limits.Duplicate: "duplicate", limits.Calendar: "quota"}[r.Algorithm]
	name := r.Name
	if index >= policiesOfSet {
		name = otherPolicy
	}
	return refusal{name, cmp.Or(kind, "window")}
}

// takeCounts holds the outcomes of all sets. It is guarded by the lock of its Sets.
type takeCounts struct {
	all   *prometheus.CounterVec
	shown map[string]map[refusal]bool // the policies of each set that have a series
}

func newTakeCounts(set *meters.Set) takeCounts {
	return takeCounts{
		set.Counter("limit_takes_total", "Takes from limit sets: allowed, refused (by a policy of a kind), repeated (counted before), or unchecked_allowed and unchecked_refused (Redis did not answer).",
			"set", "outcome", "policy", "kind"),
		make(map[string]map[refusal]bool),
	}
}

// of returns the counters of a set. It creates them at 0, because Prometheus sees no increase in the
// first value of a counter, and ends the series of policies that the set has no longer.
func (t takeCounts) of(set string, rules []*limits.Rule) (o outcomes) {
	for i, name := range []string{"allowed", "repeated", "unchecked_allowed", "unchecked_refused"} {
		o.of[i] = t.all.WithLabelValues(set, name, "", "")
	}
	shown := make(map[refusal]bool, len(rules))
	for i, r := range rules {
		by := refusalOf(i, r)
		shown[by] = true
		o.refusedBy = append(o.refusedBy, t.all.WithLabelValues(set, refusedTake, by.policy, by.kind))
	}
	for by := range t.shown[set] {
		if !shown[by] {
			t.all.DeleteLabelValues(set, refusedTake, by.policy, by.kind)
		}
	}
	t.shown[set] = shown
	return o
}

// forget ends all series of a set.
func (t takeCounts) forget(set string) {
	delete(t.shown, set)
	t.all.DeletePartialMatch(prometheus.Labels{"set": set})
}

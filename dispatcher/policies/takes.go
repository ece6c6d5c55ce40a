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

// Take is the request of a caller to take from a limit set.
type Take struct {
	Caller string // owner of the ID: two callers may use the same ID
	ID     string // a repeated request with the same ID, facts and cost is counted once; if ID is empty, each request is counted
	Facts  map[string]string
	Cost   int64 // at least 1
}

// Verdict is the answer of a set to a Take.
type Verdict struct {
	limits.Taken
	Rules     []*limits.Rule // the rules of Items, in the same order
	Unchecked bool           // Redis did not answer: Allowed follows on_error, and Items is empty
}

// ownID returns an id that is unique over all callers. If ID is empty, it returns an empty id.
func (t Take) ownID() string {
	if t.ID == "" {
		return ""
	}
	return fmt.Sprintf("%d:%s%s", len(t.Caller), t.Caller, t.ID)
}

// CostError is returned for a Take with a cost that a policy can never allow.
type CostError struct {
	Take   int // index of the Take
	Policy string
	Most   int64 // maximum cost of one take
}

// Error returns a message with the name of the policy and the maximum cost.
func (e *CostError) Error() string {
	return fmt.Sprintf("policy %s allows a cost of %d at most", e.Policy, e.Most)
}

// uncheckedAgain is the Wait of a take that was refused because it could not be checked.
const uncheckedAgain = time.Second

// Take checks each take on its own, and counts it if all policies of the set allow it for its facts. on_error
// decides about a take that cannot be checked. Take returns store.ErrNotFound if there is no such set, a
// CostError if a cost is too high, and devices.ErrUnavailable if the set cannot be read.
func (s *Sets) Take(ctx context.Context, set string, takes []Take) ([]Verdict, error) {
	known, verdicts, err := s.ask(ctx, set, takes, Takes.Take)
	for _, v := range verdicts {
		known.counts.count(v)
	}
	return verdicts, err
}

// Peek returns what Take would return, and counts nothing.
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
		return nil, nil, ctx.Err() // the client no longer waits
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

// unchecked returns n verdicts for takes that Redis did not answer. They are allowed only if all policies of
// the set fail open.
func (k *knownSet) unchecked(n int) []Verdict {
	v := Verdict{Unchecked: true, Rules: k.rules}
	if v.Allowed = failsOpen(k.rules); !v.Allowed {
		v.Wait = uncheckedAgain
	}
	return slices.Repeat([]Verdict{v}, n)
}

// Return gives back the unused part of the take with the ID and facts of t. It returns the total that was
// given back so far: a repeated call gives back nothing more. It returns the errors of Take, and
// limits.ErrUnavailable.
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

// Usage returns the usage of the subject with these facts, for each policy of the set. It returns the errors
// of Return.
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

// Highest returns at most limit subjects with the highest usage relative to their maximum. It returns the
// errors of Return.
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

// asked returns the set with this name. It returns errNoLimits if this process has no limiter.
func (s *Sets) asked(ctx context.Context, set string) (*knownSet, error) {
	if s.config.Limits == nil {
		return nil, errNoLimits
	}
	return s.of(ctx, set)
}

// The outcomes of takes in the metric, except refusedTake.
const (
	allowed = iota
	repeated
	uncheckedAllowed
	uncheckedRefused
	outcomesOfTakes
)

// outcomes holds the counters for the takes of a set.
type outcomes struct {
	of        [outcomesOfTakes]prometheus.Counter // excludes refused takes, whose counters have the labels of a policy
	refusedBy []prometheus.Counter                // by the index of the policy in the set
}

func (o *outcomes) count(v Verdict) {
	switch by := v.RefusedBy(); {
	case v.OtherCost: // the caller's mistake: a repeated ID with another cost
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
	refusedTake = "refused" // the only outcome with a policy and a kind

	policiesOfSet = 20 // maximum number of policies of one set with series of their own
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

// of returns the counters of a set. It creates them with the value 0, because Prometheus computes no increase
// for the first value of a counter. It deletes the series of policies that the set no longer has.
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

// forget deletes all series of a set.
func (t takeCounts) forget(set string) {
	delete(t.shown, set)
	t.all.DeletePartialMatch(prometheus.Labels{"set": set})
}

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
	"github.com/fleetslots/dispatcher/limits/policy"
)

// Take is the request of a caller to take from a limit set.
type Take struct {
	Caller string // owner of the ID: two callers may use the same ID
	ID     string // a repeated request with the same ID, facts and cost is counted once; if ID is empty, each request is counted
	Facts  map[string]string
	Cost   int64 // at least 1
}

// Verdict says whether a limit set allows a Take.
type Verdict struct {
	limits.TakeResult
	Rules     []*limits.Rule // the rules of Items, in the same order
	Unchecked bool           // Redis did not answer: Allowed follows on_error, and Items is empty
}

// globalID returns an id that differs from the ids of the takes of all other callers. If t.ID is empty, it returns "".
func (t Take) globalID() string {
	if t.ID == "" {
		return ""
	}
	return fmt.Sprintf("%d:%s%s", len(t.Caller), t.Caller, t.ID)
}

// CostError is returned for a Take whose cost a policy can never allow.
type CostError struct {
	Take    int // index of the Take
	Policy  string
	MaxCost int64 // maximum cost of one take
}

// Error returns a message with the name of the policy and the maximum cost.
func (e *CostError) Error() string {
	return fmt.Sprintf("policy %s allows a cost of at most %d", e.Policy, e.MaxCost)
}

// uncheckedAgain is the Verdict.Wait of a take that was refused because Redis could not check it.
const uncheckedAgain = time.Second

// Take checks each take independently, and counts it if all policies of the set allow it for its facts. If a take cannot be checked,
// on_error decides. Take returns store.ErrNotFound if there is no such set, a CostError if a cost is too high, and devices.ErrUnavailable
// if the set cannot be read.
func (s *Sets) Take(ctx context.Context, setName string, takes []Take) ([]Verdict, error) {
	found, verdicts, err := s.evaluateTakes(ctx, setName, takes, Takes.Take)
	for _, v := range verdicts {
		found.counts.countVerdict(v)
	}
	return verdicts, err
}

// Peek returns the verdicts that Take would return for the same takes, but counts nothing.
func (s *Sets) Peek(ctx context.Context, setName string, takes []Take) ([]Verdict, error) {
	_, verdicts, err := s.evaluateTakes(ctx, setName, takes, Takes.Peek)
	return verdicts, err
}

// evaluateTakes sends takes to the limiter by the method askLimiter, and returns the set and one verdict for each take.
func (s *Sets) evaluateTakes(ctx context.Context, setName string, takes []Take, askLimiter func(Takes, context.Context, string, []limits.Taking) ([]limits.TakeResult, error)) (evaluated *cachedSet, verdicts []Verdict, err error) {
	set, err := s.loadSet(ctx, setName)
	if err != nil {
		return nil, nil, err
	}
	takings, err := set.newLimiterTakings(takes)
	if err != nil {
		return nil, nil, err
	}
	taken, err := []limits.TakeResult(nil), errNoLimits
	if s.config.Limits != nil {
		taken, err = askLimiter(s.config.Limits.Takes, ctx, limiterScopeOfSet(setName), takings)
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err() // the client no longer waits
	}
	if err != nil {
		s.config.Logger.WarnContext(ctx, "takes cannot be checked", "limit_set", setName, "err", err)
		return set, set.uncheckedVerdicts(len(takes)), nil
	}
	verdicts = make([]Verdict, len(taken))
	for i, t := range taken {
		verdicts[i] = Verdict{TakeResult: t, Rules: set.rules}
	}
	return set, verdicts, nil
}

func (k *cachedSet) newLimiterTakings(takes []Take) ([]limits.Taking, error) {
	takings := make([]limits.Taking, len(takes))
	for i, t := range takes {
		for _, r := range k.rules {
			if t.Cost > r.MaxCost() {
				return nil, &CostError{i, r.Name, r.MaxCost()}
			}
		}
		takings[i] = limits.NewTaking(t.globalID(), t.Cost, k.rules, limits.Facts{Facts: t.Facts})
	}
	return takings, nil
}

// uncheckedVerdicts returns the verdicts for takeCount takes that Redis did not check. The takes are allowed only if all policies fail open.
func (k *cachedSet) uncheckedVerdicts(takeCount int) []Verdict {
	v := Verdict{Unchecked: true, Rules: k.rules}
	if v.Allowed = allFailOpen(k.rules); !v.Allowed {
		v.Wait = uncheckedAgain
	}
	return slices.Repeat([]Verdict{v}, takeCount)
}

// GiveBack gives back the unused cost of an earlier take with the same ID and facts, and returns how much was given back in total. A repeated
// call gives back nothing more. GiveBack returns the errors of Take, and limits.ErrUnavailable.
func (s *Sets) GiveBack(ctx context.Context, setName string, take Take) (returnedCost int64, err error) {
	found, err := s.loadSetIfLimiterExists(ctx, setName)
	if err != nil {
		return 0, err
	}
	takings, err := found.newLimiterTakings([]Take{take})
	if err != nil {
		return 0, err
	}
	returned, err := s.config.Limits.Takes.Return(ctx, limiterScopeOfSet(setName), takings)
	if err != nil {
		return 0, fmt.Errorf("returning a take to limit set %s: %w", setName, err)
	}
	return returned[0], nil
}

// Usage returns, for each policy of the set, the usage of the subject with these facts. It returns store.ErrNotFound,
// devices.ErrUnavailable if the set cannot be read, or limits.ErrUnavailable.
func (s *Sets) Usage(ctx context.Context, setName string, facts map[string]string) ([]limits.SubjectUse, error) {
	found, err := s.loadSetIfLimiterExists(ctx, setName)
	if err != nil {
		return nil, err
	}
	uses, err := s.config.Limits.Usage.ReadUses(ctx, limiterScopeOfSet(setName), limits.NewItems(found.rules, limits.Facts{Facts: facts}))
	if err != nil {
		return nil, fmt.Errorf("reading the usage of limit set %s: %w", setName, err)
	}
	return uses, nil
}

// HighestUses returns at most limit subjects of the set, those with the highest usage relative to their maximum. It returns the errors of Usage.
func (s *Sets) HighestUses(ctx context.Context, setName string, limit int) ([]limits.SubjectUse, error) {
	found, err := s.loadSetIfLimiterExists(ctx, setName)
	if err != nil {
		return nil, err
	}
	uses, err := s.config.Limits.Usage.HighestUses(ctx, limiterScopeOfSet(setName), found.rules, limit)
	if err != nil {
		return nil, fmt.Errorf("reading the highest usage of limit set %s: %w", setName, err)
	}
	return uses, nil
}

func (s *Sets) loadSetIfLimiterExists(ctx context.Context, setName string) (*cachedSet, error) {
	if s.config.Limits == nil {
		return nil, errNoLimits
	}
	return s.loadSet(ctx, setName)
}

// These outcomes of takes are the indexes of takeCounters.byOutcome. The outcome refusedTake has no index.
const (
	allowed = iota
	repeated
	uncheckedAllowed
	uncheckedRefused
	outcomesOfTakes
)

type takeCounters struct {
	byOutcome [outcomesOfTakes]prometheus.Counter // excludes refused takes, whose counters have the labels of a policy
	refusedBy []prometheus.Counter                // by the index of the policy in the set
}

func (o *takeCounters) countVerdict(verdict Verdict) {
	switch by := verdict.RefusingItem(); {
	case verdict.OtherCost: // the caller's mistake: a repeated ID with another cost
	case verdict.Unchecked && verdict.Allowed:
		o.byOutcome[uncheckedAllowed].Inc()
	case verdict.Unchecked:
		o.byOutcome[uncheckedRefused].Inc()
	case verdict.Repeated:
		o.byOutcome[repeated].Inc()
	case verdict.Allowed:
		o.byOutcome[allowed].Inc()
	case by >= 0:
		o.refusedBy[by].Inc()
	}
}

const (
	refusedTake = "refused" // the only outcome whose series have the labels policy and kind

	policiesOfSet = 20 // maximum number of policies of one set with series of their own
	otherPolicy   = "other"
)

type refusalLabels struct{ policy, kind string }

// newRefusalLabels returns the metric labels of the takes that a policy refuses. rule is the rule of the policy. ruleIndex is the index of the
// policy in its set.
func newRefusalLabels(ruleIndex int, rule *limits.Rule) refusalLabels {
	kind := map[policy.Algorithm]string{policy.Duplicate: "duplicate", policy.Calendar: "quota"}[rule.Algorithm]
	name := rule.Name
	if ruleIndex >= policiesOfSet {
		name = otherPolicy
	}
	return refusalLabels{name, cmp.Or(kind, "window")}
}

// takeMetrics holds the metrics of takes. The lock of Sets guards it.
type takeMetrics struct {
	all           *prometheus.CounterVec
	refusalSeries map[string]map[refusalLabels]bool // the policies of each set that have a series
}

func newTakeMetrics(set *meters.Set) takeMetrics {
	return takeMetrics{
		set.Counter("limit_takes_total", "Takes from limit sets, by outcome: allowed, refused (with the policy and its kind), repeated (counted before), or unchecked_allowed and unchecked_refused (Redis did not answer).",
			"set", "outcome", "policy", "kind"),
		make(map[string]map[refusalLabels]bool),
	}
}

// newTakeCounters creates the counters of a set with the value 0. Without these zeros, Prometheus would miss the first increase of a counter.
// newTakeCounters deletes the series of policies that the set no longer has.
func (t takeMetrics) newTakeCounters(setName string, rules []*limits.Rule) (counters takeCounters) {
	for i, name := range []string{"allowed", "repeated", "unchecked_allowed", "unchecked_refused"} {
		counters.byOutcome[i] = t.all.WithLabelValues(setName, name, "", "")
	}
	series := make(map[refusalLabels]bool, len(rules))
	for i, r := range rules {
		by := newRefusalLabels(i, r)
		series[by] = true
		counters.refusedBy = append(counters.refusedBy, t.all.WithLabelValues(setName, refusedTake, by.policy, by.kind))
	}
	for by := range t.refusalSeries[setName] {
		if !series[by] {
			t.all.DeleteLabelValues(setName, refusedTake, by.policy, by.kind)
		}
	}
	t.refusalSeries[setName] = series
	return counters
}

func (t takeMetrics) deleteSetMetrics(setName string) {
	delete(t.refusalSeries, setName)
	t.all.DeletePartialMatch(prometheus.Labels{"set": setName})
}

package limits

import (
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/limits/policy"
)

// CompileSet validates the policies of a limit set and returns their rules, which count takes. A rule that Redis does not know begins to
// count at 0. A rule keeps its counts if only a maximum, on_error or reveal of its policy changes.
func CompileSet(owner string, policies []policy.Policy) ([]*Rule, error) {
	if err := policy.ValidateSet(policies); err != nil {
		return nil, err
	}
	rules := make([]*Rule, len(policies))
	for i, p := range policies {
		rules[i] = newSetRule(owner, p)
	}
	return rules, nil
}

// newSetRule returns the rule for settings, a policy of the limit set owner (a name). The rule counts takes.
func newSetRule(owner string, settings policy.Policy) *Rule {
	r := &Rule{Policy: settings, Owner: owner, perFields: settings.SetFields(), isSetRule: true}
	counted := settings
	counted.OnError, counted.Reveal, counted.Max, counted.Per = "", false, 0, strings.Join(r.perFields, ",")
	counted.Windows = slices.Clone(settings.Windows)
	for i := range counted.Windows {
		counted.Windows[i].Max = 0
	}
	r.setRuleHashes(" set", counted)
	r.setScriptSpec()
	return r
}

// MaxCost returns the largest cost that the rule can ever allow for one take.
func (r *Rule) MaxCost() int64 {
	lowest := r.Max
	for i, w := range r.Windows {
		if i == 0 || w.Max < lowest {
			lowest = w.Max
		}
	}
	return lowest
}

func (r *Rule) windowMax(windowIndex int) int64 {
	if windowIndex < len(r.Windows) {
		return r.Windows[windowIndex].Max
	}
	return r.Max
}

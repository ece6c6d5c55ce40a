package limits

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	_ "time/tzdata" // time zones that are the same on every machine

	"github.com/fleetslots/dispatcher/limits/policy"
)

// formatVersion is the version of the stored data. It is part of the id of each rule, so that two releases do not read each other's data.
const formatVersion = 3

// Rule is a compiled policy of an owner. It is safe for concurrent use.
type Rule struct {
	policy.Policy
	Owner string // such as a pool or a batch; rules of different owners share no counts

	id            string // hash of the settings that determine the counts; rules that count differently have different ids
	policyHash    string // hash of the whole policy without Max and Windows
	perFields     []string
	spec          string // the rule as the scripts read it, but without the boundaries of the periods of a calendar rule
	maxStarts     int64  // sliding: maximum number of stored starts of a subject; 0 means that the rule stores only a count
	longestWindow time.Duration
	zone          *time.Location
	isSetRule     bool                            // whether CompileSet made the rule
	cachedKeys    atomic.Pointer[ruleKeys]        // keys in the latest scope
	periods       atomic.Pointer[calendarPeriods] // the latest calendar periods
}

// calendarPeriods contains the starts of four calendar periods (periodStarts), and the spec of the rule that contains these starts.
type calendarPeriods struct {
	starts [4]time.Time
	spec   string
}

// Compile validates the policies of an owner, such as a pool, and returns one rule for each policy. These rules count starts. If only
// on_error, on_limited, reveal or trust_device of a policy changes, its rule keeps the counts. Any other change makes a new rule that Redis
// does not know.
func Compile(owner string, policies []policy.Policy) ([]*Rule, error) {
	if err := policy.Validate(policies); err != nil {
		return nil, err
	}
	rules := make([]*Rule, len(policies))
	for i, p := range policies {
		rules[i] = newRule(owner, p)
	}
	return rules, nil
}

func newRule(owner string, settings policy.Policy) *Rule {
	r := &Rule{Policy: settings, Owner: owner, perFields: settings.Fields()}
	counted := settings
	counted.OnError, counted.OnLimited, counted.Reveal, counted.TrustDevice, counted.Per = "", "", false, false, strings.Join(r.perFields, ",")
	r.setRuleHashes("", counted)
	r.setScriptSpec()
	return r
}

// setRuleHashes sets r.id to a hash of ruleKind, the owner and countedSettings, the settings that determine the counts. It sets r.policyHash to
// a hash of the policy.
func (r *Rule) setRuleHashes(ruleKind string, countedSettings policy.Policy) {
	r.id = hashPolicy(fmt.Appendf(nil, "%d%s\x00%s\x00", formatVersion, ruleKind, r.Owner), countedSettings)
	hashedPolicy := r.Policy
	hashedPolicy.Max, hashedPolicy.Windows = 0, nil
	r.policyHash = hashPolicy(nil, hashedPolicy)
}

// hashPolicy returns a hash of prefix and the settings. A new field of Policy must have omitempty. Without it, each rule would get another
// id, and limit sets would lose their counts. newRule and newSetRule must clear a new field that does not determine the counts.
func hashPolicy(prefix []byte, settings policy.Policy) string {
	text, _ := json.Marshal(settings) // cannot fail: settings contain only texts and numbers
	sum := sha256.Sum256(append(prefix, text...))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// setScriptSpec sets r.spec, the text that tells the scripts how the rule counts (lua/keys.lua), and r.longestWindow.
func (r *Rule) setScriptSpec() {
	p := r.Policy
	switch p.Algorithm {
	case policy.Sliding:
		r.setSlidingWindowSpec(p.Windows)
	case policy.Duplicate:
		r.setSlidingWindowSpec([]policy.Window{{Max: p.Max, PerMS: p.PerMS}})
	case policy.Fixed:
		r.longestWindow = millisToDuration(p.PerMS)
		r.spec = fmt.Sprintf("F %d %d", p.Max, p.PerMS)
	case policy.Calendar:
		r.zone, _ = policy.Location(p.Timezone) // p was validated, so the zone exists
		// longestWindow must be longer than any period of this kind, even if the clocks are changed during it.
		r.longestWindow = map[policy.Period]time.Duration{policy.Day: 25 * time.Hour, policy.Week: 8 * 24 * time.Hour, policy.Month: 32 * 24 * time.Hour}[p.Period]
		r.spec = fmt.Sprintf("C %d %d", p.Max, r.longestWindow.Milliseconds())
	}
}

func (r *Rule) setSlidingWindowSpec(windows []policy.Window) {
	var text strings.Builder
	for _, w := range windows {
		r.maxStarts = max(r.maxStarts, w.Max)
		r.longestWindow = max(r.longestWindow, millisToDuration(w.PerMS))
		fmt.Fprintf(&text, " %d %d", w.Max, w.PerMS)
	}
	r.spec = fmt.Sprintf("S %d %d%s", r.maxStarts, r.longestWindow.Milliseconds(), text.String())
}

// Subject returns the subject for which the rule counts a start with these facts, such as a device.
func (r *Rule) Subject(facts Facts) Subject { return newSubject(r.perFields, facts, r.Reveal) }

// FailsOpen reports whether the rule allows a start that cannot be checked.
func (r *Rule) FailsOpen() bool { return r.OnError == policy.FailOpen }

// Drops reports whether a task ends if the rule refuses its start. If not, the start is tried again later.
func (r *Rule) Drops() bool { return r.OnLimited == policy.DropOnLimit }

// DescribeWindow returns a text for display about the window with this index, such as "5 per 1h0m0s".
func (r *Rule) DescribeWindow(windowIndex int) string {
	switch r.Algorithm {
	case policy.Sliding:
		if windowIndex < len(r.Windows) {
			return fmt.Sprintf("%d per %s", r.Windows[windowIndex].Max, millisToDuration(r.Windows[windowIndex].PerMS))
		}
	case policy.Calendar:
		zone := r.Timezone
		if zone == "" {
			zone = "UTC"
		}
		return fmt.Sprintf("%d per %s of %s", r.Max, r.Period, zone)
	case policy.Duplicate:
		return fmt.Sprintf("%d equal ones per %s", r.Max, millisToDuration(r.PerMS))
	case policy.Fixed:
	}
	return fmt.Sprintf("%d per %s", r.Max, millisToDuration(r.PerMS))
}

// scriptSpecAt returns the spec of the rule for the scripts. For a calendar rule, the spec contains the periods around the time now.
func (r *Rule) scriptSpecAt(now time.Time) string {
	if r.Algorithm != policy.Calendar {
		return r.spec
	}
	return r.periodsAround(now).spec
}

func (r *Rule) periodsAround(now time.Time) *calendarPeriods {
	if p := r.periods.Load(); p != nil && !now.Before(p.starts[1]) && now.Before(p.starts[2]) {
		return p
	}
	p := &calendarPeriods{starts: periodStarts(r.Period, r.zone, now), spec: r.spec}
	for _, start := range p.starts {
		p.spec += fmt.Sprintf(" %d", start.UnixMilli())
	}
	r.periods.Store(p)
	return p
}

func millisToDuration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

package limits

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	_ "time/tzdata" // a policy means the same on every machine

	"github.com/fleetslots/dispatcher/limits/policy"
)

// packedMax is up to how many starts of a subject are kept as one text, which is read
// and written as a whole; beyond, in a list, of which no more is read than is needed.
const packedMax = 32

// format is that of what is kept. A rule of another one is another rule, so that two
// releases side by side do not misread each other.
const format = 2

// Rule is a policy of an owner, ready to be checked. It is safe for concurrent use.
type Rule struct {
	Policy
	Owner string // such as a pool or a batch; rules of different owners never meet

	id      string // of what it counts: a rule that counts otherwise is another rule
	shown   string // of how it is written, but for numbers
	perEach []string
	spec    string // as the scripts read it; of a calendar without its boundaries
	cap     int64  // sliding: as many starts of a subject are kept; 0: only counted
	longest time.Duration
	zone    *time.Location
	ofSet   bool                    // made by CompileSet
	names   atomic.Pointer[names]   // in the scope that asked last
	periods atomic.Pointer[periods] // computed last
}

// periods are those around a time, and a spec with them.
type periods struct {
	starts [4]time.Time
	spec   string
}

// Compile makes rules of the policies of an owner, and checks them (policy.Validate).
func Compile(owner string, policies []Policy) ([]*Rule, error) {
	if err := policy.Validate(policies); err != nil {
		return nil, err
	}
	rules := make([]*Rule, len(policies))
	for i, p := range policies {
		rules[i] = newRule(owner, p)
	}
	return rules, nil
}

func newRule(owner string, p Policy) *Rule {
	r := &Rule{Policy: p, Owner: owner, perEach: p.Fields()}
	counted := p
	counted.OnError, counted.OnLimited, counted.Reveal, counted.TrustDevice, counted.Per = "", "", false, false, strings.Join(r.perEach, ",")
	r.name("", counted)
	r.specify()
	return r
}

// name gives the rule the id of what it counts.
func (r *Rule) name(kind string, counted Policy) {
	r.id = hashed(fmt.Appendf(nil, "%d%s\x00%s\x00", format, kind, r.Owner), counted)
	written := r.Policy
	written.Max, written.Windows = 0, nil
	r.shown = hashed(nil, written)
}

func hashed(head []byte, p Policy) string {
	text, _ := json.Marshal(p) // cannot fail: texts and numbers
	sum := sha256.Sum256(append(head, text...))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

// specify writes what the scripts need to know of the policy.
func (r *Rule) specify() {
	p := r.Policy
	switch p.Algorithm {
	case Sliding:
		r.slide(p.Windows)
	case Duplicate:
		r.slide([]Window{{Max: p.Max, PerMS: p.PerMS}})
	case Fixed:
		r.longest = millis(p.PerMS)
		r.spec = fmt.Sprintf("F %d %d", p.Max, p.PerMS)
	case Calendar:
		r.zone, _ = policy.Location(p.Timezone) // validated
		r.longest = map[Period]time.Duration{Day: 25 * time.Hour, Week: 8 * 24 * time.Hour, Month: 32 * 24 * time.Hour}[p.Period]
		r.spec = fmt.Sprintf("C %d %d", p.Max, r.longest.Milliseconds())
	}
}

func (r *Rule) slide(windows []Window) {
	var text strings.Builder
	for _, w := range windows {
		r.cap = max(r.cap, w.Max)
		r.longest = max(r.longest, millis(w.PerMS))
		fmt.Fprintf(&text, " %d %d", w.Max, w.PerMS)
	}
	kind := "L"
	if r.cap <= packedMax {
		kind = "P"
	}
	r.spec = fmt.Sprintf("%s %d %d%s", kind, r.cap, r.longest.Milliseconds(), text.String())
}

// Longest is how long a start may matter.
func (r *Rule) Longest() time.Duration { return r.longest }

// Subject of a start.
func (r *Rule) Subject(f Facts) Subject { return subjectOf(r.perEach, f, r.Reveal) }

// FailsOpen says that a start passes that cannot be checked.
func (r *Rule) FailsOpen() bool { return r.OnError == policy.Open }

// Drops says that a start which is refused is not to be tried again.
func (r *Rule) Drops() bool { return r.OnLimited == policy.Drop }

// Describe says what window is meant, counted from 0, for people.
func (r *Rule) Describe(window int) string {
	switch r.Algorithm {
	case Sliding:
		if window < len(r.Windows) {
			return fmt.Sprintf("%d per %s", r.Windows[window].Max, millis(r.Windows[window].PerMS))
		}
	case Calendar:
		zone := r.Timezone
		if zone == "" {
			zone = "UTC"
		}
		return fmt.Sprintf("%d per %s of %s", r.Max, r.Period, zone)
	case Duplicate:
		return fmt.Sprintf("%d equal ones per %s", r.Max, millis(r.PerMS))
	case Fixed:
	}
	return fmt.Sprintf("%d per %s", r.Max, millis(r.PerMS))
}

// specAt is the spec for a check at about this time.
func (r *Rule) specAt(now time.Time) string {
	if r.Algorithm != Calendar {
		return r.spec
	}
	return r.around(now).spec
}

// around computes periods once for each of them.
func (r *Rule) around(now time.Time) *periods {
	if p := r.periods.Load(); p != nil && !now.Before(p.starts[1]) && now.Before(p.starts[2]) {
		return p
	}
	p := &periods{starts: boundaries(r.Period, r.zone, now), spec: r.spec}
	for _, start := range p.starts {
		p.spec += fmt.Sprintf(" %d", start.UnixMilli())
	}
	r.periods.Store(p)
	return p
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of policies.
const (
	MaxPolicies = 16                           // policies of one owner
	MaxWindows  = 8                            // windows of one policy
	MaxCount    = 100_000                      // starts in a sliding window; the memory of a subject grows with it
	MaxNumber   = 1_000_000_000                // starts in a fixed window or a calendar period, which need only a counter
	MaxPer      = int64(31*24*time.Hour) / 1e6 // maximum duration of a window in ms
	maxName     = 64
	maxFields   = 8
	maxPerText  = 256
)

// Validate checks the policies of one owner. An error is ErrInvalid and contains the field and its allowed values.
func Validate(policies []Policy) error { return validate(policies, Policy.checkPer) }

func validate(policies []Policy, checkPer func(p Policy, at string) error) error {
	if len(policies) > MaxPolicies {
		return bad("limits", "at most %d policies", MaxPolicies)
	}
	for i, p := range policies {
		at := fmt.Sprintf("limits[%d].", i)
		if err := p.check(at); err != nil {
			return err
		}
		if err := checkPer(p, at+"per"); err != nil {
			return err
		}
		if slices.ContainsFunc(policies[:i], func(o Policy) bool { return o.Name == p.Name }) {
			return bad(at+"name", "%q is there twice", p.Name)
		}
	}
	return nil
}

// FieldError reports an invalid field of a policy. It is ErrInvalid.
type FieldError struct {
	Field   string // such as limits[0].windows[1].max
	Allowed string // description of the allowed values
}

// Error returns the field and its allowed values.
func (e *FieldError) Error() string { return e.Field + ": " + e.Allowed }

// Unwrap returns ErrInvalid.
func (*FieldError) Unwrap() error { return ErrInvalid }

// bad returns a FieldError. format and args describe the allowed values.
func bad(field, format string, args ...any) error {
	return &FieldError{Field: field, Allowed: fmt.Sprintf(format, args...)}
}

func (p Policy) check(at string) error {
	if !validName(p.Name) {
		return bad(at+"name", "1-%d of A-Z a-z 0-9 . _ : -, starting with a letter or digit", maxName)
	}
	if !slices.Contains([]OnError{"", Closed, Open}, p.OnError) {
		return bad(at+"on_error", "open or closed")
	}
	if !slices.Contains([]OnLimited{"", Wait, Drop}, p.OnLimited) {
		return bad(at+"on_limited", "wait or drop")
	}
	return p.checkAlgorithm(at)
}

func (p Policy) checkAlgorithm(at string) error {
	switch p.Algorithm {
	case Sliding:
		if err := p.refuse(at, "per_ms", "period", "timezone", "max"); err != nil {
			return err
		}
		return p.checkWindows(at + "windows")
	case Fixed, Duplicate:
		if err := p.refuse(at, "windows", "period", "timezone"); err != nil {
			return err
		}
		most := int64(MaxNumber)
		if p.Algorithm == Duplicate {
			most = MaxCount
		}
		if err := within(at+"per_ms", p.PerMS, MaxPer); err != nil {
			return err
		}
		return within(at+"max", p.Max, most)
	case Calendar:
		if err := p.refuse(at, "windows", "per_ms"); err != nil {
			return err
		}
		if err := p.checkCalendar(at); err != nil {
			return err
		}
		return within(at+"max", p.Max, MaxNumber)
	}
	return bad(at+"algorithm", "sliding, fixed, calendar or duplicate")
}

// refuse returns an error if one of the fields is set: the algorithm does not use them.
func (p Policy) refuse(at string, fields ...string) error {
	given := map[string]bool{
		"windows": len(p.Windows) > 0, "per_ms": p.PerMS != 0, "period": p.Period != "",
		"timezone": p.Timezone != "", "max": p.Max != 0,
	}
	for _, field := range fields {
		if given[field] {
			return bad(at+field, "not with algorithm %s", p.Algorithm)
		}
	}
	return nil
}

func (p Policy) checkWindows(at string) error {
	if len(p.Windows) < 1 || len(p.Windows) > MaxWindows {
		return bad(at, "1 to %d", MaxWindows)
	}
	for i, w := range p.Windows {
		field := fmt.Sprintf("%s[%d].", at, i)
		if err := within(field+"max", w.Max, MaxCount); err != nil {
			return err
		}
		if err := within(field+"per_ms", w.PerMS, MaxPer); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Windows[:i], func(o Window) bool { return o.PerMS == w.PerMS }) {
			return bad(field+"per_ms", "%d is there twice", w.PerMS)
		}
	}
	return nil
}

func (p Policy) checkCalendar(at string) error {
	if !slices.Contains([]Period{Day, Week, Month}, p.Period) {
		return bad(at+"period", "day, week or month")
	}
	if _, err := Location(p.Timezone); err != nil {
		return bad(at+"timezone", "a time zone such as Asia/Shanghai")
	}
	return nil
}

func within(field string, n, most int64) error {
	if n < 1 || n > most {
		return bad(field, "1 to %d", most)
	}
	return nil
}

// Location returns the time zone with this name. It refuses "Local", because the zones of the
// replicas' machines may differ.
func Location(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, ErrInvalid
	}
	return time.LoadLocation(name)
}

// Named returns the tags and the attributes that policies count by, each name once.
func Named(policies []Policy) (tags, attributes []string) {
	for _, p := range policies {
		for _, field := range p.Fields() {
			switch group, name, _ := strings.Cut(field, "."); {
			case group == "tags" && !slices.Contains(tags, name):
				tags = append(tags, name)
			case group == "attributes" && !slices.Contains(attributes, name):
				attributes = append(attributes, name)
			}
		}
	}
	return tags, attributes
}

func (p Policy) checkPer(at string) error {
	fields := p.Fields()
	if len(p.Per) > maxPerText || len(fields) > maxFields {
		return bad(at, "at most %d fields and %d bytes", maxFields, maxPerText)
	}
	for i, field := range fields {
		switch group, name, _ := strings.Cut(field, "."); {
		case slices.Contains([]string{"device", "batch", "pool", "kind", "payload"}, field):
		case (group == "tags" || group == "payload") && name != "":
		case group == "attributes" && name != "" && !p.TrustDevice:
			return bad(at, "%q is said by the device itself, which could escape the limit; to accept that, set trust_device", field)
		case group == "attributes" && name != "":
		default:
			return bad(at, "%q is not one of tags.NAME, device, batch, pool, kind, payload, payload.NAME, attributes.NAME", field)
		}
		if slices.Contains(fields[:i], field) {
			return bad(at, "%q is there twice", field)
		}
	}
	return nil
}

// Fields returns the fields of Per, one by one.
func (p Policy) Fields() []string {
	per := p.Per
	if per == "" && p.Algorithm == Duplicate {
		per = duplicatePer
	}
	return split(per)
}

func split(per string) []string {
	fields := strings.Split(per, ",")
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	return fields
}

func validName(s string) bool {
	for i, c := range []byte(s) {
		alnum := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("._:-", rune(c))) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

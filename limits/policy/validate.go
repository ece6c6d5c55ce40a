package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// These constants limit the settings of policies.
const (
	MaxPolicies      = 16                           // policies of one owner
	MaxWindows       = 8                            // windows of one policy
	MaxSlidingStarts = 100_000                      // starts in a sliding window; the memory of a subject grows with this number
	MaxCountedStarts = 1_000_000_000                // starts in a fixed window or a calendar period, which need only a counter
	MaxWindowMS      = int64(31*24*time.Hour) / 1e6 // maximum duration of a window in ms
	maxName          = 64
	maxFields        = 8
	maxPerText       = 256
)

// Validate checks the policies of one owner. An error is a *FieldError.
func Validate(policies []Policy) error { return validate(policies, Policy.checkPer) }

// validate returns an error for the first invalid policy. checkPer checks the field Per, which has the name fieldName in the error.
func validate(policies []Policy, checkPer func(p Policy, fieldName string) error) error {
	if len(policies) > MaxPolicies {
		return fieldError("limits", "at most %d policies", MaxPolicies)
	}
	for i, p := range policies {
		path := fmt.Sprintf("limits[%d].", i)
		if err := p.checkExceptPer(path); err != nil {
			return err
		}
		if err := checkPer(p, path+"per"); err != nil {
			return err
		}
		if slices.ContainsFunc(policies[:i], func(o Policy) bool { return o.Name == p.Name }) {
			return fieldError(path+"name", "%q appears twice", p.Name)
		}
	}
	return nil
}

// FieldError reports an invalid field of a policy. It wraps ErrInvalid.
type FieldError struct {
	Field   string // such as limits[0].windows[1].max
	Allowed string // description of the allowed values
}

// Error returns the field and its allowed values.
func (e *FieldError) Error() string { return e.Field + ": " + e.Allowed }

// Unwrap returns ErrInvalid.
func (*FieldError) Unwrap() error { return ErrInvalid }

func fieldError(field, format string, args ...any) error {
	return &FieldError{Field: field, Allowed: fmt.Sprintf(format, args...)}
}

// checkExceptPer returns an error if a field other than Per is invalid. fieldPrefix is the prefix of the field's name in the error.
func (p Policy) checkExceptPer(fieldPrefix string) error {
	if !isValidName(p.Name) {
		return fieldError(fieldPrefix+"name", "1-%d of A-Z a-z 0-9 . _ : -, starting with a letter or digit", maxName)
	}
	if !slices.Contains([]OnError{"", FailClosed, FailOpen}, p.OnError) {
		return fieldError(fieldPrefix+"on_error", "must be open or closed")
	}
	if !slices.Contains([]OnLimited{"", WaitOnLimit, DropOnLimit}, p.OnLimited) {
		return fieldError(fieldPrefix+"on_limited", "must be wait or drop")
	}
	return p.checkAlgorithm(fieldPrefix)
}

func (p Policy) checkAlgorithm(fieldPrefix string) error {
	switch p.Algorithm {
	case Sliding:
		if err := p.checkFieldsUnset(fieldPrefix, "per_ms", "period", "timezone", "max"); err != nil {
			return err
		}
		return p.checkWindows(fieldPrefix + "windows")
	case Fixed, Duplicate:
		if err := p.checkFieldsUnset(fieldPrefix, "windows", "period", "timezone"); err != nil {
			return err
		}
		maxStarts := int64(MaxCountedStarts)
		if p.Algorithm == Duplicate {
			maxStarts = MaxSlidingStarts
		}
		if err := checkRange(fieldPrefix+"per_ms", p.PerMS, MaxWindowMS); err != nil {
			return err
		}
		return checkRange(fieldPrefix+"max", p.Max, maxStarts)
	case Calendar:
		if err := p.checkFieldsUnset(fieldPrefix, "windows", "per_ms"); err != nil {
			return err
		}
		if err := p.checkCalendar(fieldPrefix); err != nil {
			return err
		}
		return checkRange(fieldPrefix+"max", p.Max, MaxCountedStarts)
	}
	return fieldError(fieldPrefix+"algorithm", "must be sliding, fixed, calendar or duplicate")
}

// checkFieldsUnset returns an error if one of fields, which the algorithm does not use, is set.
func (p Policy) checkFieldsUnset(fieldPrefix string, fields ...string) error {
	isSet := map[string]bool{
		"windows": len(p.Windows) > 0, "per_ms": p.PerMS != 0, "period": p.Period != "",
		"timezone": p.Timezone != "", "max": p.Max != 0,
	}
	for _, field := range fields {
		if isSet[field] {
			return fieldError(fieldPrefix+field, "not allowed with algorithm %s", p.Algorithm)
		}
	}
	return nil
}

func (p Policy) checkWindows(fieldName string) error {
	if len(p.Windows) < 1 || len(p.Windows) > MaxWindows {
		return fieldError(fieldName, "must have between 1 and %d entries", MaxWindows)
	}
	for i, w := range p.Windows {
		field := fmt.Sprintf("%s[%d].", fieldName, i)
		if err := checkRange(field+"max", w.Max, MaxSlidingStarts); err != nil {
			return err
		}
		if err := checkRange(field+"per_ms", w.PerMS, MaxWindowMS); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Windows[:i], func(o Window) bool { return o.PerMS == w.PerMS }) {
			return fieldError(field+"per_ms", "%d appears twice", w.PerMS)
		}
	}
	return nil
}

func (p Policy) checkCalendar(fieldPrefix string) error {
	if !slices.Contains([]Period{Day, Week, Month}, p.Period) {
		return fieldError(fieldPrefix+"period", "must be day, week or month")
	}
	if _, err := Location(p.Timezone); err != nil {
		return fieldError(fieldPrefix+"timezone", "must be a time zone such as Asia/Shanghai")
	}
	return nil
}

func checkRange(field string, value, maxAllowed int64) error {
	if value < 1 || value > maxAllowed {
		return fieldError(field, "must be between 1 and %d", maxAllowed)
	}
	return nil
}

// Location returns the time zone with this name. It refuses "Local", which may differ between the machines of replicas.
func Location(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, ErrInvalid
	}
	return time.LoadLocation(name)
}

// CountedNames returns the tags and the attributes that policies count by, each name once.
func CountedNames(policies []Policy) (tags, attributes []string) {
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

func (p Policy) checkPer(fieldName string) error {
	fields := p.Fields()
	if len(p.Per) > maxPerText || len(fields) > maxFields {
		return fieldError(fieldName, "at most %d fields and %d bytes", maxFields, maxPerText)
	}
	for i, field := range fields {
		switch group, name, _ := strings.Cut(field, "."); {
		case slices.Contains([]string{"device", "batch", "pool", "kind", "payload"}, field):
		case (group == "tags" || group == "payload") && name != "":
		case group == "attributes" && name != "" && !p.TrustDevice:
			return fieldError(fieldName, "%q is set by the device itself, which could evade the limit; to accept that, set trust_device", field)
		case group == "attributes" && name != "":
		default:
			return fieldError(fieldName, "%q is not one of tags.NAME, device, batch, pool, kind, payload, payload.NAME, attributes.NAME", field)
		}
		if slices.Contains(fields[:i], field) {
			return fieldError(fieldName, "%q appears twice", field)
		}
	}
	return nil
}

// Fields returns a list of the fields that Per names.
func (p Policy) Fields() []string {
	per := p.Per
	if per == "" && p.Algorithm == Duplicate {
		per = duplicatePer
	}
	return splitPerFields(per)
}

func splitPerFields(perText string) []string {
	fields := strings.Split(perText, ",")
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	return fields
}

func isValidName(name string) bool {
	for i, c := range []byte(name) {
		alnum := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("._:-", rune(c))) {
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

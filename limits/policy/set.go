package policy

import (
	"slices"
	"strings"
)

// ValidateSet checks the policies of a limit set, which count takes by their facts. It returns the same errors as Validate.
func ValidateSet(policies []Policy) error { return validate(policies, Policy.checkSetPer) }

// AllFacts is a value of Per for a policy of a limit set. With this value, the policy counts by all facts of a take together.
const AllFacts = "facts"

// SetFields returns the fields that Per names, for a policy of a limit set. For the algorithm Duplicate, the default of Per is AllFacts.
func (p Policy) SetFields() []string {
	if p.Per == "" && p.Algorithm == Duplicate {
		return []string{AllFacts}
	}
	return splitPerFields(p.Per)
}

func (p Policy) checkSetPer(fieldName string) error {
	if p.TrustDevice {
		return fieldError(strings.TrimSuffix(fieldName, "per")+"trust_device", "not allowed in a limit set, which has no devices")
	}
	if p.OnLimited != "" {
		return fieldError(strings.TrimSuffix(fieldName, "per")+"on_limited", "not allowed in a limit set, in which no task waits")
	}
	fields := p.SetFields()
	if len(p.Per) > maxPerText || len(fields) > maxFields {
		return fieldError(fieldName, "at most %d fields and %d bytes", maxFields, maxPerText)
	}
	for i, field := range fields {
		name, is := strings.CutPrefix(field, AllFacts+".")
		if (!is || name == "") && (p.Per != "" || field != AllFacts) {
			return fieldError(fieldName, "%q is not facts.NAME, the only field of a limit set", field)
		}
		if slices.Contains(fields[:i], field) {
			return fieldError(fieldName, "%q appears twice", field)
		}
	}
	return nil
}

package policy

import (
	"slices"
	"strings"
)

// ValidateSet checks the policies of a set, which count the takes of programs by their
// facts and know nothing of tasks. An error is as that of Validate.
func ValidateSet(policies []Policy) error { return validate(policies, Policy.checkPerOfSet) }

// AllFacts is the field of a set that means all the facts of a take.
const AllFacts = "facts"

// FieldsOfSet are those of Per in a set, each by itself. A duplicate is equal in all facts
// unless it says otherwise.
func (p Policy) FieldsOfSet() []string {
	if p.Per == "" && p.Algorithm == Duplicate {
		return []string{AllFacts}
	}
	return split(p.Per)
}

func (p Policy) checkPerOfSet(at string) error {
	if p.TrustDevice {
		return bad(strings.TrimSuffix(at, "per")+"trust_device", "not in a set, which knows no devices")
	}
	if p.OnLimited != "" {
		return bad(strings.TrimSuffix(at, "per")+"on_limited", "not in a set, in which nothing waits")
	}
	fields := p.FieldsOfSet()
	if len(p.Per) > maxPerText || len(fields) > maxFields {
		return bad(at, "at most %d fields and %d bytes", maxFields, maxPerText)
	}
	for i, field := range fields {
		name, is := strings.CutPrefix(field, AllFacts+".")
		if (!is || name == "") && (p.Per != "" || field != AllFacts) {
			return bad(at, "%q is not facts.NAME, which is all that a set knows", field)
		}
		if slices.Contains(fields[:i], field) {
			return bad(at, "%q is there twice", field)
		}
	}
	return nil
}

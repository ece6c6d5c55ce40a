package credentials_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

func TestPatternsCoverNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		patterns []string
		name     string
		covered  bool
	}{
		{nil, "ci", false},
		{[]string{"ci"}, "ci", true},
		{[]string{"ci"}, "ci-1", false},
		{[]string{"ci-*"}, "ci-1", true},
		{[]string{"ci-*"}, "ci-", true},
		{[]string{"ci-*"}, "my-ci-1", false},
		{[]string{"*-prod"}, "sms-prod", true},
		{[]string{"a*b*c"}, "a:x.b_c", true},
		{[]string{"x", "*"}, "ar:330100", true},
		{[]string{"*"}, "", false},
	} {
		if got := store.Covers(test.patterns, test.name); got != test.covered {
			t.Errorf("%q of %q: %t", test.name, test.patterns, got)
		}
	}
}

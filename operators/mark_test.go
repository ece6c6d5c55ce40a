package operators_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// A mark is reported as trouble only if it can mislead a report of its own device, not if the marks of other devices are
// outdated.
func TestTroubleOfAMark(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mark *operators.Mark
		want string
	}{
		{nil, ""},
		{&operators.Mark{Believed: true}, ""},
		{&operators.Mark{Present: true, Believed: true, Work: true}, ""},
		{&operators.Mark{Present: true, Work: true}, ""},
		{&operators.Mark{}, "not believed"},
		{&operators.Mark{Work: true}, "not believed"},
		{&operators.Mark{Believed: true, Work: true}, "no mark of work"},
		{&operators.Mark{Present: true, Believed: true}, "no open task"},
	} {
		if got := c.mark.Trouble(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%+v: %q, want %q", c.mark, got, c.want)
		}
	}
}

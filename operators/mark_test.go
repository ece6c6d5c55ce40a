package operators_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// A mark in Redis says that a device has work. DescribeTrouble must report trouble if the mark and the ledger disagree, or if the device
// has no mark and marks are not trusted.
func TestTroubleOfAMark(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mark *operators.Mark
		want string
	}{
		{nil, ""},
		{&operators.Mark{Trusted: true}, ""},
		{&operators.Mark{Present: true, Trusted: true, HasWork: true}, ""},
		{&operators.Mark{Present: true, HasWork: true}, ""},
		{&operators.Mark{}, "not trusted"},
		{&operators.Mark{HasWork: true}, "not trusted"},
		{&operators.Mark{Trusted: true, HasWork: true}, "no mark"},
		{&operators.Mark{Present: true, Trusted: true}, "no open task"},
	} {
		if got := c.mark.DescribeTrouble(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%+v: %q, want %q", c.mark, got, c.want)
		}
	}
}

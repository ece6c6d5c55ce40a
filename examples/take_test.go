package examples_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// TestATakeWaitsUntilItIsAllowed: the second message to a phone is sent when the set allows it, and
// one to another phone at once.
func TestATakeWaitsUntilItIsAllowed(t *testing.T) {
	t.Parallel()
	const period = 5 * time.Second
	s := newSite(t)
	set := operators.LimitSetSettings{Limits: []operators.Policy{
		{Name: "per-phone", Per: "facts.phone", Algorithm: "sliding", Windows: []operators.PolicyWindow{{Max: 1, PerMS: period.Milliseconds()}}},
	}}
	if _, err := s.admin.Limits.Put(t.Context(), limitSet, set); err != nil {
		t.Fatal(err)
	}
	send := func(phone string) *example {
		return s.start("./take.sh", limitSet, "phone="+phone, "user=ann", "--", "echo", "sent to", phone)
	}
	began := time.Now()
	first := send("+49 170 1")
	first.says("sent to +49 170 1")
	first.exits(0)
	second := send("+49 170 1")
	second.says("refused, again in ")
	other := send("+49 170 2")
	other.exits(0)
	if strings.Contains(other.text(), "refused") {
		t.Errorf("another phone: %s", other.text())
	}
	second.exits(0)
	if took := time.Since(began); took < period || !strings.Contains(second.text(), "sent to +49 170 1") {
		t.Errorf("both were sent within %s: %s", took, second.text())
	}
	s.start("./take.sh", "none", "--", "true").exits(1)
	if _, err := s.admin.Limits.UseOf(t.Context(), limitSet, map[string]string{"phone": "+49 170 1", "user": "ann"}); err != nil {
		t.Error(err)
	}
}

package examples_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// TestATakeWaitsUntilItIsAllowed checks that the second message to a phone is sent when the limit set
// allows it, and that a message to another phone is sent at once.
func TestATakeWaitsUntilItIsAllowed(t *testing.T) {
	t.Parallel()
	const period = 5 * time.Second
	s := newDevServer(t)
	set := operators.LimitSetSettings{Limits: []operators.Policy{
		{Name: "per-phone", Per: "facts.phone", Algorithm: "sliding", Windows: []operators.PolicyWindow{{Max: 1, PerMS: period.Milliseconds()}}},
	}}
	_, err := s.admin.Limits.Put(t.Context(), limitSet, set)
	must.Succeed(t, err)
	send := func(phone string) *runningExample {
		return s.startExample("./take.sh", limitSet, "phone="+phone, "user=ann", "--", "echo", "sent to", phone)
	}
	began := time.Now()
	first := send("+49 170 1")
	first.waitForOutput("sent to +49 170 1")
	first.expectExit(0)
	second := send("+49 170 1")
	second.waitForOutput("refused, again in ")
	other := send("+49 170 2")
	other.expectExit(0)
	if strings.Contains(other.String(), "refused") {
		t.Errorf("another phone: %s", other.String())
	}
	second.expectExit(0)
	if took := time.Since(began); took < period || !strings.Contains(second.String(), "sent to +49 170 1") {
		t.Errorf("both were sent within %s: %s", took, second.String())
	}
	s.startExample("./take.sh", "none", "--", "true").expectExit(1)
	if _, err := s.admin.Limits.SubjectUse(t.Context(), limitSet, map[string]string{"phone": "+49 170 1", "user": "ann"}); err != nil {
		t.Error(err)
	}
}

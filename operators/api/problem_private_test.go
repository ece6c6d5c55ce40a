package api

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

// TestAClientLearnsWhetherAnythingWasChanged checks the codes of errors that the servers cause. Only
// outcome_unknown means that the change may have been committed. After every other code, a client may send the same
// request again.
func TestAClientLearnsWhetherAnythingWasChanged(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err    error
		code   string
		server string
	}{
		{store.ErrOutcomeUnknown, codeOutcomeUnknown, ""},
		{fmt.Errorf("%w: %w", devices.ErrUnavailable, store.ErrOutcomeUnknown), codeUnavailable, serverLedger}, // only for a report, which the device sends again
		{store.ErrDiskFull, codeUnavailable, serverLedger},
		{errors.New("connection refused"), codeUnavailable, serverLedger},
		{seen.ErrUnavailable, codeUnavailable, serverRedis},
		{limits.ErrUnavailable, codeUnavailable, serverRedis},
		{credentials.ErrBroker, codeBrokerUnavailable, ""},
	} {
		got := asProblem(fmt.Errorf("doing it: %w", test.err))
		if got.Status != 503 || got.Code != test.code || got.Server != test.server {
			t.Errorf("%v: %d %s of %q, want 503 %s of %q", test.err, got.Status, got.Code, got.Server, test.code, test.server)
		}
	}
}

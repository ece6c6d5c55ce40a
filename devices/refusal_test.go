package devices_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestRefusalsAreThoseOfThePage compares Refusals with the table of errors in docs/protocol.md. Each status must
// have the same reason, and the same statement of whether the device sends the report again.
func TestRefusalsAreThoseOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/protocol.md")
	must.Succeed(t, err)
	_, text, _ := strings.Cut(string(page), "| HTTP | MQTT `reason` | what a device does |\n")
	text, _, _ = strings.Cut(text, "\n\n")
	for _, r := range devices.Refusals() {
		var found bool
		for row := range strings.Lines(text) {
			cells := strings.Split(row, "|")
			if len(cells) < 4 || !strings.Contains(cells[1], fmt.Sprint(r.Status)) {
				continue
			}
			found = true
			reason := strings.Contains(cells[2], "`"+string(r.Reason)+"`") || r.Err == devices.ErrIncomplete //nolint:errorlint // identifies the row of ErrIncomplete; only over HTTP a body can break off
			if again := !strings.Contains(cells[3], "never sends the same"); !reason || again != r.MayResend {
				t.Errorf("%v: %d, %s, again %t; the page: %s", r.Err, r.Status, r.Reason, r.MayResend, row)
			}
		}
		if !found {
			t.Errorf("%d is not on the page", r.Status)
		}
	}
}

func TestRefusalOfAnError(t *testing.T) {
	t.Parallel()
	inside := errors.New("not found")
	for _, test := range []struct {
		err                   error
		status                int
		reason                devices.Reason
		code, detail, session string
	}{
		{fmt.Errorf("reading: %w", &devices.Error{Reason: devices.ReasonInvalid, Code: "too_deep", Detail: "body: x"}), 400, "invalid", "too_deep", "body: x", "body: x"},
		{&devices.Error{Reason: devices.ReasonTooLarge, Code: "body_too_large", Detail: "y"}, 413, "too_large", "body_too_large", "y", "y"},
		{&devices.Error{Reason: devices.ReasonBusyServer, Code: "busy_server", Detail: "z"}, 503, "busy_server", "busy_server", "z", "z"},
		{fmt.Errorf("%w: %w", devices.ErrForbidden, inside), 403, "forbidden", "forbidden", "this token may not do that", "unknown, blocked or revoked"},
		{fmt.Errorf("%w: %w", devices.ErrUnavailable, inside), 503, "unavailable", "unavailable", "the ledger cannot be reached; send again", "the ledger cannot be reached; send again"},
		{inside, 503, "unavailable", "unavailable", "the ledger cannot be reached; send again", "the ledger cannot be reached; send again"},
	} {
		r := devices.RefusalOf(test.err)
		reply := r.Reply("r1", 1500e6)
		if r.Status != test.status || r.Reason != test.reason || r.Code != test.code || r.Detail != test.detail {
			t.Errorf("%v: %+v", test.err, r)
		}
		if reply.Re != "r1" || reply.Reason != test.reason || reply.Code != test.code || reply.Detail != test.session || reply.ReportAfterMS != 1500 {
			t.Errorf("%v: reply %+v", test.err, reply)
		}
	}
}

// TestAnUnknownDeviceWaitsAPeriod checks the refusal of a device that may register later: it reports again after a whole report period, so
// that many such devices do not load the server.
func TestAnUnknownDeviceWaitsAPeriod(t *testing.T) {
	t.Parallel()
	r := devices.RefusalOf(fmt.Errorf("admitting: %w", devices.ErrRegistrationRate))
	if r.Status != 503 || r.Reason != devices.ReasonBusyServer || r.DelayAs != devices.ReasonNone || r.Code != "registration_rate" {
		t.Errorf("%+v", r)
	}
}

package app

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestATooLargeFleetIsLogged checks the warning of the embedded mode about a fleet that is too large: it is logged once, and again only
// after the fleet was smaller in between.
func TestATooLargeFleetIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := &fleetSizeWatch{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, n := range []int{embeddedFleet, embeddedFleet + 7, embeddedFleet + 8, 10, embeddedFleet + 9} {
		w.countReporting = func(context.Context, time.Duration) (int, error) { return n, nil }
		must.Succeed(t, w.warnIfTooLarge(t.Context()))
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "devices=5007 carried=5000") || !strings.Contains(lines[1], "devices=5009") {
		t.Errorf("log %q, want a line for 5007 and one for 5009 devices", lines)
	}
}

package dispatcher_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/await"
)

// TestAnOutageIsNotLoggedByEveryReport checks that an outage of Redis is logged once and not for every report,
// because there may be 10,000 reports a second.
func TestAnOutageIsNotLoggedByEveryReport(t *testing.T) {
	t.Parallel()
	var out await.Output
	now := time.Now()
	b, spies := newSpiedBench(t, func(c *dispatcher.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&out, nil))
		c.Now = func() time.Time { return now }
	})
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d0", "d1", "d2", "d3")
	spies.failCalls("Acquire")
	for i := range 4 {
		b.expectReason(fmt.Sprintf("d%d", i), `{}`, devices.ReasonUnavailable)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 1 {
		t.Errorf("%d lines for one outage:\n%s", lines, out.String())
	}
}

// TestABadEntryIsLogged checks reports with invalid entries: they are logged at most once a second, without the
// data that the device sent.
func TestABadEntryIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ body, want string }{
		"results": {
			`{"results":[{"task":7,"token":1,"status":"done","output":"secret"},{"task":8}]}`,
			`level=WARN msg="invalid result rejected" device=d task=7 code=invalid_status`,
		},
		"running": {
			`{"running":[{"task":7,"token":"secret"},{"task":8},9]}`,
			`level=WARN msg="invalid entry of running: the device is asked to stop its task" device=d task=7 code=invalid_token`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out await.Output
			now := time.Now()
			b := newLightBench(t, func(c *dispatcher.Config) {
				c.Logger = slog.New(slog.NewTextHandler(&out, nil))
				c.Now = func() time.Time { return now }
			})
			for range 3 {
				b.sendReport("d", test.body)
			}
			if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, test.want) {
				t.Errorf("logged %s, want one line with %s", got, test.want)
			}
		})
	}
}

package dispatcher_test

import (
	"log/slog"
	"regexp"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/await"
)

// The log at level debug must have the duration of each step of a handoff. At other levels it must have no such lines.
func TestDebugLogHasTheStepsOfAHandoff(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`msg="handed on" pool=a via=park called=\S+ woken=\S+ read=\S+ acquired=\S+ claimed=\S+\n`)
	for level, want := range map[slog.Level]int{slog.LevelDebug: 1, slog.LevelInfo: 0} {
		var log await.Output
		b := newLightBench(t, withMinuteOffers, func(c *dispatcher.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))
		})
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1", "d2")
		first := b.expectGrant("d1")
		w := b.parkReport("d2")
		b.sendResult("d1", first, "succeeded", "", devices.OutcomeRecorded)
		if a := w.awaitAnswer(); a.Task == nil {
			t.Fatalf("%+v, want a grant", a)
		}
		if got := len(line.FindAllString(log.String(), -1)); got != want {
			t.Errorf("%s: %d handoffs, want %d, in\n%s", level, got, want, log.String())
		}
	}
}

package decision

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// timingWithJitter returns a Timing with a report period of 30 s and servers that answer. Its jitter always returns
// draw.
func timingWithJitter(draw float64) Timing {
	return Timing{Period: 30 * time.Second, Jitter: func() float64 { return draw }, Outage: func() time.Duration { return 0 }}
}

func TestReportAfterFollowsTheReason(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := map[string]struct {
		choice    Choice
		turn      time.Duration
		low, high time.Duration
	}{
		"idle: about a period":              {Choice{Reason: devices.ReasonNone}, 0, 24 * time.Second, 36 * time.Second},
		"full: what the queue expects":      {Choice{Reason: devices.ReasonFull}, 7 * time.Second, 7 * time.Second, 7 * time.Second},
		"full: no storm":                    {Choice{Reason: devices.ReasonFull}, 0, time.Second, time.Second},
		"to come: never early":              {Choice{Reason: devices.ReasonWindow, Until: now.Add(10 * time.Second)}, 0, 10 * time.Second, 12 * time.Second},
		"to come in days: within a period":  {Choice{Reason: devices.ReasonWindow, Until: now.Add(72 * time.Hour)}, 0, 30 * time.Second, 36 * time.Second},
		"an opening: not all at once":       {Choice{Reason: devices.ReasonWindow, Until: now.Add(10 * time.Second), Shared: true}, 0, 10 * time.Second, 25 * time.Second},
		"an opening in days":                {Choice{Reason: devices.ReasonWindow, Until: now.Add(72 * time.Hour), Shared: true}, 0, 30 * time.Second, 36 * time.Second},
		"already there":                     {Choice{Reason: devices.ReasonWindow, Until: now.Add(-time.Second)}, 0, time.Second, time.Second},
		"busy: when its lease ends":         {Choice{Reason: devices.ReasonBusy, Until: now.Add(5 * time.Second)}, 0, 5 * time.Second, 6 * time.Second},
		"limited: when its policy lets it":  {Choice{Reason: devices.ReasonLimited, Until: now.Add(10 * time.Second)}, 0, 10 * time.Second, 12 * time.Second},
		"limited for hours: a period":       {Choice{Reason: devices.ReasonLimited, Until: now.Add(time.Hour)}, 0, 30 * time.Second, 36 * time.Second},
		"after a restore: when it is over":  {Choice{Reason: devices.ReasonUnavailable, Until: now.Add(10 * time.Second)}, 0, 10 * time.Second, 12 * time.Second},
		"unavailable: seconds":              {Choice{Reason: devices.ReasonUnavailable}, 0, 1500 * time.Millisecond, 4500 * time.Millisecond},
		"blocked: minutes":                  {Choice{Reason: devices.ReasonBlocked}, 0, 8 * time.Minute, 12 * time.Minute},
		"declined: a period":                {Choice{Reason: devices.ReasonDeclined}, 0, 24 * time.Second, 36 * time.Second},
		"paused: a period, until it is not": {Choice{Reason: devices.ReasonPaused}, 0, 24 * time.Second, 36 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for draw, want := range map[float64]time.Duration{0: test.low, 1: test.high} {
				if got := timingWithJitter(draw).DelayAfter(test.choice, now, test.turn); got != want {
					t.Errorf("jitter %v: %s, want %s", draw, got, want)
				}
			}
		})
	}
}

func TestAfterRefusalIsJittered(t *testing.T) {
	t.Parallel()
	for reason, mean := range map[devices.Reason]time.Duration{
		devices.ReasonForbidden: 10 * time.Minute, devices.ReasonUnavailable: 3 * time.Second, devices.ReasonBusyServer: 3 * time.Second,
		devices.ReasonInvalid: 30 * time.Second, devices.ReasonTooLarge: 30 * time.Second,
	} {
		at := func(draw float64) time.Duration { return timingWithJitter(draw).DelayAfterRefusal(reason) }
		if low, mid, high := at(0), at(0.5), at(1); mid != mean || low > mean*4/5 || high < mean*6/5 {
			t.Errorf("%s: %s to %s around %s, want around %s", reason, low, high, mid, mean)
		}
	}
}

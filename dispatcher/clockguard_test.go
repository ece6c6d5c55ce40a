package dispatcher

import (
	"testing"
	"time"
)

const longestLease = 5 * time.Minute

// reading is one of the database's clock, all times since the start.
type reading struct {
	after time.Duration // by our own clock
	shows time.Duration // by the database's
	want  time.Duration // what is believed
	slow  time.Duration // how long the answer took
}

func readings() map[string][]reading {
	return map[string][]reading{
		"both agree": {{0, 0, 0, 0}, {10 * time.Second, 10 * time.Second, 10 * time.Second, 0}},
		"a little ahead is drift": {
			{0, 0, 0, 0},
			{10 * time.Second, 11 * time.Second, 11 * time.Second, 0},
		},
		"a step forward is believed by elapsed time only": {
			{0, 0, 0, 0},
			{10 * time.Second, time.Hour, 11 * time.Second, 0},
			{20 * time.Second, time.Hour + 10*time.Second, 21 * time.Second, 0},
		},
		"the doubt does not creep": {
			{0, 0, 0, 0},
			{time.Second, time.Hour, 2 * time.Second, 0},
			{2 * time.Second, time.Hour, 3 * time.Second, 0},
			{3 * time.Second, time.Hour, 4 * time.Second, 0},
		},
		"after the longest lease the new clock holds": {
			{0, 0, 0, 0},
			{10 * time.Second, time.Hour, 11 * time.Second, 0},
			{10*time.Second + longestLease - 1, time.Hour + longestLease, 11*time.Second + longestLease - 1, 0},
			{10*time.Second + longestLease, time.Hour + longestLease, time.Hour + longestLease, 0},
			{20*time.Second + longestLease, time.Hour + longestLease + 10*time.Second, time.Hour + longestLease + 10*time.Second, 0},
		},
		"a step back is followed at once": {
			{0, 0, 0, 0},
			{10 * time.Second, -time.Hour, -time.Hour, 0},
			{20 * time.Second, -time.Hour + 10*time.Second, -time.Hour + 10*time.Second, 0},
		},
		"a step there and back ends the doubt": {
			{0, 0, 0, 0},
			{10 * time.Second, time.Hour, 11 * time.Second, 0},
			{20 * time.Second, 20 * time.Second, 20 * time.Second, 0},
			{20*time.Second + longestLease, 2 * time.Hour, 21*time.Second + longestLease, 0},
		},
		"a slow answer is no step when the next one is quick": {
			{0, 0, 0, 4 * time.Second},
			{10 * time.Second, 10 * time.Second, 10 * time.Second, 4 * time.Second},
			{20 * time.Second, 20 * time.Second, 20 * time.Second, 0},
			{30 * time.Second, time.Hour, 31 * time.Second, 0},
		},
		"a late answer is believed by the time it was asked for": {
			{0, 0, 0, 0},
			{10 * time.Second, 14 * time.Second, 11 * time.Second, 4 * time.Second},
			{20 * time.Second, 20 * time.Second, 20 * time.Second, 0},
		},
	}
}

func TestAClockThatStepsForwardEndsNoLeaseEarly(t *testing.T) {
	t.Parallel()
	own := time.Now()
	for name, all := range readings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guard := &clockGuard{}
			for i, r := range all {
				at := own.Add(r.after)
				got := guard.believe(moment().Add(r.shows), at, at.Add(r.slow), longestLease)
				if got := got.Sub(moment()); got != r.want {
					t.Fatalf("reading %d: believed %s, want %s", i, got, r.want)
				}
			}
		})
	}
}

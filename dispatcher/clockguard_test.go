package dispatcher

import (
	"testing"
	"time"
)

func TestClockGuard(t *testing.T) {
	t.Parallel()
	database := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	own := time.Now()
	const longest = 5 * time.Minute
	type reading struct {
		after time.Duration // of our own clock since the start
		shows time.Duration // the database's clock since its start
		want  time.Duration // what is believed
		slow  time.Duration // how long the answer took
	}
	tests := map[string][]reading{
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
			{10*time.Second + longest - 1, time.Hour + longest, 11*time.Second + longest - 1, 0},
			{10*time.Second + longest, time.Hour + longest, time.Hour + longest, 0},
			{20*time.Second + longest, time.Hour + longest + 10*time.Second, time.Hour + longest + 10*time.Second, 0},
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
			{20*time.Second + longest, 2 * time.Hour, 21*time.Second + longest, 0},
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
	for name, readings := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guard := &clockGuard{}
			for i, r := range readings {
				at := own.Add(r.after)
				got := guard.believe(database.Add(r.shows), at, at.Add(r.slow), longest)
				if got := got.Sub(database); got != r.want {
					t.Fatalf("reading %d: believed %s, want %s", i, got, r.want)
				}
			}
		})
	}
}

package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher"
)

// Who is refused first, just after a batch was queued, is told of those who have
// not asked yet, as soon as they were counted; not of devices that are away, and
// not before it is known how long places are held.
func TestCrowdIsCounted(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *bench{"embedded": embedded, "servers": servers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &elapsing{at: time.Now()}
			b := open(t, func(c *dispatcher.Config) { c.Now, c.ReportPeriod = clock.now, 10*time.Minute })
			b.pool("a", 1, 15*time.Minute)
			there := []string{"holder", "early"}
			for i := range 8 {
				there = append(there, fmt.Sprintf("d%d", i))
			}
			for _, device := range there {
				b.report(device, `{"id":"1","accept":false}`)
			}
			if err := b.FlushSeen(b.ctx); err != nil {
				b.t.Fatal(err)
			}
			b.batch("a", nil, append([]string{"away-1", "away-2", "away-3"}, there...)...)
			b.granted("holder")
			told := func() time.Duration {
				clock.pass(5 * time.Second) // it is counted again after 30 s
				return time.Duration(b.report("early", `{"id":"2"}`).ReportAfterMS) * time.Millisecond
			}
			for deadline := time.Now().Add(minute); b.Crowd("a") == 0; told() {
				if time.Now().After(deadline) {
					b.t.Fatal("nothing is counted")
				}
			}
			if got := b.Crowd("a"); got != 9 {
				b.t.Errorf("%d wait, want the 9 that are there", got)
			}
			if got := told(); got > 5*time.Second {
				b.t.Errorf("told %s, want 5 s at most: how long a place is held is unknown", got)
			}
			b.Held("a", 20*time.Second)
			// It, and half of the 8 others, at 20 s; the jitter takes a twentieth.
			if got := told(); got != 95*time.Second {
				b.t.Errorf("told %s, want 95 s", got)
			}
			clock.pass(10 * time.Minute)
			if got := time.Duration(b.report("d7", `{"id":"2"}`).ReportAfterMS) * time.Millisecond; got != 38*time.Second {
				b.t.Errorf("told %s, want 38 s, for two in line: what was counted is too old", got)
			}
		})
	}
}

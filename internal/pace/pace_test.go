package pace_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
)

const session = devices.ViaSession

// testClock is the injected clock of a Limiter.
type testClock struct{ now time.Time }

// newLimiter returns a limiter of 20 reports a second.
func newLimiter(burst int) (*pace.Limiter, *testClock) {
	c := &testClock{time.Unix(1000, 0)}
	return pace.New(pace.Options{Rate: 20, Burst: burst, Now: func() time.Time { return c.now }}), c
}

// takeMany sends n reports of device, one after each interval, and returns the number of accepted ones.
func (c *testClock) takeMany(l *pace.Limiter, device devices.ID, n int, interval time.Duration) (accepted int) {
	for range n {
		if l.Take(device, session) {
			accepted++
		}
		c.now = c.now.Add(interval)
	}
	return accepted
}

func TestRateAndBurst(t *testing.T) {
	t.Parallel()
	l, c := newLimiter(100)
	if got := c.takeMany(l, "a", 1000, 0); got != 100 {
		t.Errorf("%d of 1000 reports at once were accepted, want the burst of 100", got)
	}
	if !l.Take("b", session) || !l.Take("a", devices.ViaOwnToken) || !l.Take("a", devices.ViaFleetToken) {
		t.Error("a took the tokens of another sender")
	}
	c.now = c.now.Add(time.Second)
	if got := c.takeMany(l, "a", 1000, 0); got != 20 {
		t.Errorf("%d reports were accepted after a second, want 20", got)
	}
	if got := c.takeMany(l, "a", 10_000, time.Millisecond); got != 199 {
		t.Errorf("%d reports were accepted in 10 s, want 199", got)
	}
	c.now = c.now.Add(time.Hour)
	if got := c.takeMany(l, "a", 1000, 0); got != 100 {
		t.Errorf("%d reports were accepted after an hour, want the burst of 100", got)
	}
}

func TestOneRefusalASecondIsAnswered(t *testing.T) {
	t.Parallel()
	l, c := newLimiter(1)
	answered := 0
	for range 10_000 {
		if !l.Take("a", session) && l.MayAnswer("a", session) {
			answered++
		}
		c.now = c.now.Add(time.Millisecond)
	}
	if answered != 10 {
		t.Errorf("%d refusals were answered in 10 s, want 10", answered)
	}
}

func TestNoisyAfterTenSecondsOfExcess(t *testing.T) {
	t.Parallel()
	l, c := newLimiter(100)
	c.takeMany(l, "burst", 1000, 0)
	c.takeMany(l, "a", 10_000, time.Millisecond)
	if noisy := l.Noisy(); noisy != nil {
		t.Errorf("%v before 10 s of excess", noisy)
	}
	c.takeMany(l, "a", 300, time.Millisecond)
	if noisy := l.Noisy(); len(noisy) != 1 || noisy[0] != (pace.NoisyDevice{Device: "a", Via: session, Rate: 1000}) {
		t.Errorf("%v, want a with 1000 reports a second", noisy)
	}
	c.now = c.now.Add(5 * time.Second) // the bucket is full
	if noisy := l.Noisy(); noisy != nil {
		t.Errorf("%v after the end of the excess", noisy)
	}
	if got := c.takeMany(l, "a", 1000, 0); got != 100 || l.Noisy() != nil {
		t.Errorf("%d were accepted, noisy %v; want a new excess", got, l.Noisy())
	}
}

// TestDeviceWithinItsRateIsNeverNoisy checks a device that sends a burst, and then reports a little below its rate: it is never noisy.
func TestDeviceWithinItsRateIsNeverNoisy(t *testing.T) {
	t.Parallel()
	l, c := newLimiter(100)
	c.takeMany(l, "a", 110, 0)
	if got := c.takeMany(l, "a", 15*60, time.Second/15); got != 15*60-1 || l.Noisy() != nil {
		t.Errorf("%d of 900 were accepted, want all but the first; noisy %v", got, l.Noisy())
	}
}

// TestMemoryIsBounded checks that the number of buckets stays bounded while 300,000 devices report once in ten seconds, and while more new
// devices report at one moment than there are buckets. A device whose bucket is empty must stay limited.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	l, c := newLimiter(100)
	most := 0
	for n := range 300_000 {
		l.Take(devices.ID(fmt.Sprint("d-", n)), session)
		if c.now = c.now.Add(30 * time.Microsecond); n%5_000 == 0 {
			most = max(most, l.Buckets())
		}
	}
	if most > 80_000 {
		t.Errorf("%d buckets for 33,000 reports a second", most)
	}
	c.takeMany(l, "noisy", 200, 0)
	for n := range 160_000 {
		if !l.Take(devices.ID(fmt.Sprint("new-", n)), session) {
			t.Fatal("a device was refused because there are many devices")
		}
	}
	if l.Take("noisy", session) {
		t.Error("the noisy device is not limited any more")
	}
	if n := l.Buckets(); n > 16*8192 {
		t.Errorf("%d buckets", n)
	}
}

func TestWithoutALimit(t *testing.T) {
	t.Parallel()
	l := pace.New(pace.Options{})
	for range 1000 {
		if !l.Take("a", session) || !l.MayAnswer("a", session) || l.Noisy() != nil {
			t.Fatal("limited")
		}
	}
}

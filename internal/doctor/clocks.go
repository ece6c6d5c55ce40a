package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/store"
)

// maxClockOffset is the maximum accepted difference between two clocks.
const maxClockOffset = time.Second

// clockOffset compares two clocks: ahead is the time by which the first clock is ahead of the second,
// and maxError is the maximum error of ahead.
type clockOffset struct{ ahead, maxError time.Duration }

// checkClocks compares the clock of the ledger, the clock of Redis and the clock of this machine with each other. A server that is nil or
// does not answer is left out.
func (p Installation) checkClocks(ctx context.Context, ledger *store.Store, redis *redisconn.Conn) (findings []Finding) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var offsets []clockOffset
	compare := func(name string, clock func(context.Context) (time.Time, error)) {
		if r, err := p.measureClockOffset(ctx, clock); err == nil { // a server that does not answer has a separate finding
			offsets = append(offsets, r)
			findings = append(findings, newOffsetFinding("clock of "+name, r, "this machine"))
		}
	}
	if ledger != nil {
		compare("postgres", ledger.Clock)
	}
	if redis != nil {
		compare("redis", func(ctx context.Context) (time.Time, error) { return redis.Client.Time(ctx).Result() })
	}
	if len(offsets) == 2 {
		between := clockOffset{offsets[1].ahead - offsets[0].ahead, offsets[0].maxError + offsets[1].maxError}
		findings = append(findings, newOffsetFinding("clocks of redis and postgres", between, "Postgres"))
	}
	return findings
}

// measureClockOffset calls read, which returns the time of a remote clock, and compares that time with the clock of this machine.
// The remote clock was read at an unknown time between request and answer, so the maximum error is half of the time
// between them.
func (p Installation) measureClockOffset(ctx context.Context, read func(context.Context) (time.Time, error)) (clockOffset, error) {
	asked := p.Now()
	shown, err := read(ctx)
	took := p.Now().Sub(asked)
	return clockOffset{shown.Sub(asked.Add(took / 2)), took / 2}, err
}

// newOffsetFinding returns the finding about a clock that is ahead of the clock named reference by offset.
func newOffsetFinding(checkName string, offset clockOffset, reference string) Finding {
	found := fmt.Sprintf("%s ahead of the clock of %s, with an error of at most %s", offset.ahead.Round(time.Millisecond), reference, offset.maxError.Round(time.Millisecond))
	return newFinding(checkName, offset.ahead.Abs()-offset.maxError > maxClockOffset, Warning, found,
		"synchronize all machines with one time server (chrony, systemd-timesyncd): chronyc tracking; timedatectl")
}

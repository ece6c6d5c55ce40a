package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/store"
)

// clocksApart is the maximum accepted difference between two clocks.
const clocksApart = time.Second

// reading is the result of reading a clock: how far it is ahead of another clock, and the maximum
// error.
type reading struct{ ahead, doubt time.Duration }

// clocks compares the clocks of the servers that answer.
func (p Patient) clocks(ctx context.Context, ledger *store.Store, redis *redisconn.Conn) (list []Finding) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var read []reading
	ask := func(name string, clock func(context.Context) (time.Time, error)) {
		if r, err := p.read(ctx, clock); err == nil { // a server that does not answer has a separate finding
			read = append(read, r)
			list = append(list, apart("clock of "+name, r, "this machine"))
		}
	}
	if ledger != nil {
		ask("postgres", ledger.Clock)
	}
	if redis != nil {
		ask("redis", func(ctx context.Context) (time.Time, error) { return redis.Client.Time(ctx).Result() })
	}
	if len(read) == 2 {
		between := reading{read[1].ahead - read[0].ahead, read[0].doubt + read[1].doubt}
		list = append(list, apart("clocks of redis and postgres", between, "Postgres"))
	}
	return list
}

// read reads a clock. The clock was read at some time between the question and the answer, so the
// maximum error is half of this time.
func (p Patient) read(ctx context.Context, clock func(context.Context) (time.Time, error)) (reading, error) {
	asked := p.Now()
	shown, err := clock(ctx)
	took := p.Now().Sub(asked)
	return reading{shown.Sub(asked.Add(took / 2)), took / 2}, err
}

func apart(name string, r reading, than string) Finding {
	f := Finding{Check: name, State: OK, Found: fmt.Sprintf("%s ahead of that of %s, give or take %s",
		r.ahead.Round(time.Millisecond), than, r.doubt.Round(time.Millisecond))}
	if r.ahead.Abs()-r.doubt > clocksApart {
		f.State, f.Remedy = Warning, "let all machines follow one time server (chrony, systemd-timesyncd): chronyc tracking; timedatectl"
	}
	return f
}

package limits

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// SettleWithin is the maximum time for which a reservation may stay open before new checks of its scope return StatusUnsettled.
const SettleWithin = 12 * time.Second

// Limiter contains the parts that work on the counts in one Redis. They are safe for concurrent use, also by several processes.
type Limiter struct {
	Reservations *Reservations
	Takes        *Takes
	Rebuilder    *Rebuilder
	Usage        *Usage
	Refusals     *RefusalCounts
}

// New returns a limiter that keeps its counts in the Redis of client. The client must not have been used before. The limiter detects a loss of
// data in Redis only if the client is a *redis.Client or a *redis.ClusterClient. Give the client short timeouts and no retries, so that calls
// fail quickly while Redis is down.
func New(client redis.UniversalClient) *Limiter {
	local := time.Now //nolint:forbidigo // elapsed time, and a guess that Redis corrects
	conn := &connection{client: client, breakers: redisconn.NewBreakers(client, local), clock: serverClock{local: local}}
	s, uses := newScripts(SettleWithin), &useCounts{}
	epochs, refusals := newEpochs(conn, s.epoch), &RefusalCounts{conn: conn, note: s.note, top: s.top}
	reservations := &Reservations{conn: conn, epochs: epochs, uses: uses, refusals: refusals, reserve: s.reserve, settle: s.settle, overdue: s.overdue}
	reservations.checkCalls, reservations.settleCalls = newCoalescer(reservations.askAll), newCoalescer(reservations.settleAll)
	takes := &Takes{conn: conn, epochs: epochs, uses: uses, scripts: s.take}
	takes.takeCalls = newCoalescer(takes.askAll)
	return &Limiter{
		Reservations: reservations,
		Takes:        takes,
		Rebuilder:    &Rebuilder{conn: conn, epochs: epochs, uses: uses, reservations: reservations, fill: s.fill},
		Usage:        &Usage{conn: conn, epochs: epochs, uses: uses, takes: takes},
		Refusals:     refusals,
	}
}

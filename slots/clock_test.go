package slots_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/fleetslots/dispatcher/internal/testservers"
)

// The clock of Redis steps back a day: an offer of the future is over, and a waiter who is
// told to come in the future is given up as any other.
func TestNothingLastsUntilATimeInTheFuture(t *testing.T) {
	t.Parallel()
	mini, began := miniredis.RunT(t), time.Now()
	mini.SetTime(began)
	s := serve(t, testservers.RedisAt{Addr: mini.Addr(), InProcess: true})
	pool := s.poolOf(t, 1)
	s.wakeables(t, pool, 1, 2, 3)
	diff(t, "offered", offeredTasks(s.leave(t, pool, 1)), []int64{2})
	back := began.Add(-24 * time.Hour)
	mini.SetTime(back)
	diff(t, "offered after the step", offeredTasks(s.handOn(t, pool).Offers), []int64{3})
	mini.SetTime(back.Add(2*offeringPace().Longest + time.Minute))
	diff(t, "held, reserved, ready, waiting", state(s.handOn(t, pool)), [4]int{})
}

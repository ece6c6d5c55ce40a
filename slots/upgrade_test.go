package slots_test

import (
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/slots"
)

// before is the semaphore of the release before there were lines, as a replica
// of it works on the same pools: five keys, and no batch in a holder's record.
type before struct {
	*server
	pool                       string
	acquire, release, snapshot *redis.Script
}

func newBefore(t *testing.T, s *server, pool string) before {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile("testdata/before-lines/" + name + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	script := func(name string) *redis.Script { return redis.NewScript(read("pool") + read(name)) }
	return before{s, pool, script("acquire"), script("release"), script("snapshot")}
}

// ask returns the status: 1 full, 2 acquired, 3 held.
func (b before) ask(t *testing.T, lease string) int64 {
	t.Helper()
	got, err := b.acquire.Run(t.Context(), b.client, slots.Keys(b.pool)[:5], "call", lease, "d", 60_000).Int64Slice()
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

func (b before) free(t *testing.T, lease string) int64 {
	t.Helper()
	got, err := b.release.Run(t.Context(), b.client, slots.Keys(b.pool)[:5], "call-"+lease, lease).Int64Slice()
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

// TestBesideTheReleaseBefore: old and new replicas on one Redis keep the cap and
// free each other's leases, and what the batches hold is right again once it was
// counted anew.
func TestBesideTheReleaseBefore(t *testing.T) {
	t.Parallel()
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, b)
			pool := s.poolOf(t, 3)
			old := newBefore(t, s, pool)
			ask := func(task, batch int64) slots.Status {
				return s.ask(t, pool, sleepyPace(), slots.Want{Task: task, Batch: batch}).Status
			}
			diff(t, "new", ask(1, 7), slots.StatusAcquired)
			diff(t, "old", old.ask(t, "old"), int64(2))
			diff(t, "new again", ask(2, 7), slots.StatusAcquired)
			diff(t, "old, full", old.ask(t, "more"), int64(1))
			diff(t, "old asks for a new one's lease", old.ask(t, "1"), int64(3))
			diff(t, "new, full", ask(3, 8), slots.StatusFull)
			diff(t, "held", s.holders(t, pool), map[int]string{0: "1", 1: "old", 2: "2"})

			diff(t, "old frees a new one's", old.free(t, "2"), int64(1))
			diff(t, "new frees an old one's", s.release(t, pool, "old"), []bool{true})
			diff(t, "held", s.holders(t, pool), map[int]string{0: "1"})
			reply, err := old.snapshot.Run(t.Context(), s.client, slots.Keys(pool)[:5]).Slice()
			if err != nil || len(reply) != 6 || len(strings.Split(reply[5].(string), "|")) != 4 { //nolint:errcheck,forcetypeassert // a test
				t.Errorf("an old one reads %v, %v", reply, err)
			}

			// The old release counted nothing: batch 7 holds one, and is counted as two.
			if err := s.client.HDel(t.Context(), "slots:{"+pool+"}:batch", "counted").Err(); err != nil { // ten seconds pass
				t.Fatal(err)
			}
			ask(1000, 9) // somebody asks while others wait
			if n, err := s.client.HGet(t.Context(), "slots:{"+pool+"}:batch", "h0000000000000007").Result(); err != nil || n != "1" {
				t.Errorf("batch 7 is counted as %s, %v", n, err)
			}
		})
	}
}

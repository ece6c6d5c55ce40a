package seen_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// runOnEachRedis runs a test on each kind of Redis, with two clients of the same list of recent devices.
func runOnEachRedis(t *testing.T, test func(t *testing.T, one, other *seen.List)) {
	t.Helper()
	var redises servers.SharedRedis // not shared with other tests: a Redis has only one list
	t.Cleanup(redises.Close)
	redises.RunOnEach(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		test(t, seen.NewList(at.Client(t)), seen.NewList(at.Client(t)))
	})
}

func newSighting(device string, ms int64) seen.Sighting {
	return seen.Sighting{Device: device, At: time.UnixMilli(ms).UTC()}
}

func addSightings(t *testing.T, l *seen.List, all ...seen.Sighting) {
	t.Helper()
	must.Succeed(t, l.Add(t.Context(), all))
}

func readNewest(t *testing.T, l *seen.List) []seen.Sighting {
	t.Helper()
	all, err := l.Newest(t.Context())
	must.Succeed(t, err)
	return all
}

func TestNewestFirstWithoutDuplicates(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, one, other *seen.List) {
		t.Helper()
		if got := readNewest(t, one); len(got) != 0 {
			t.Errorf("at first %v", got)
		}
		const now = 1_790_000_000_000
		addSightings(t, one, newSighting("a", now), newSighting("B", now+2), newSighting("a", now+5), newSighting("a", now+1))
		addSightings(t, other, newSighting("c", now+3), newSighting("a", now-7), newSighting("B", now+9))
		addSightings(t, other)
		want := []seen.Sighting{newSighting("B", now+9), newSighting("a", now+5), newSighting("c", now+3)}
		for _, l := range []*seen.List{one, other} {
			if diff := cmp.Diff(want, readNewest(t, l)); diff != "" {
				t.Error(diff)
			}
		}
	})
}

func TestOnlyTheNewestAreKept(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, one, other *seen.List) {
		t.Helper()
		var many []seen.Sighting
		for i := range int64(3 * seen.MaxRecent) {
			many = append(many, newSighting(fmt.Sprint("d-", i), i))
		}
		addSightings(t, one, many...)
		addSightings(t, other, newSighting("old", 1), newSighting("new", 10_000))
		got := readNewest(t, one)
		if len(got) != seen.MaxRecent || got[0].Device != "new" || got[1].Device != "d-2999" || got[seen.MaxRecent-1].Device != "d-2001" {
			t.Errorf("%d kept, from %v to %v", len(got), got[0], got[len(got)-1])
		}
	})
}

// TestLatestTimeStaysOfManyAtOnce checks several replicas that add the same devices to the list at the same time:
// the latest time of each device stays.
func TestLatestTimeStaysOfManyAtOnce(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, one, other *seen.List) {
		t.Helper()
		var wait sync.WaitGroup
		for n := range 8 {
			wait.Go(func() {
				l := []*seen.List{one, other}[n%2]
				for round := range 20 {
					var part []seen.Sighting
					for d := range 50 {
						part = append(part, newSighting(fmt.Sprint("d-", d), int64(1000*d+20*n+round)))
					}
					if err := l.Add(t.Context(), part); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		var want []seen.Sighting
		for d := range 50 {
			want = append(want, newSighting(fmt.Sprint("d-", d), int64(1000*d+20*7+19)))
		}
		slices.Reverse(want)
		if diff := cmp.Diff(want, readNewest(t, one)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRedisMayLoseAllOrBeAway(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	l := seen.NewList(servers.RedisAt{Addr: server.Addr()}.Client(t))
	addSightings(t, l, newSighting("a", 1))
	server.FlushAll() // Redis lost all data, including the script
	addSightings(t, l, newSighting("b", 2))
	if diff := cmp.Diff([]seen.Sighting{newSighting("b", 2)}, readNewest(t, l)); diff != "" {
		t.Error(diff)
	}
	server.Close()
	if _, err := l.Newest(t.Context()); !errors.Is(err, seen.ErrUnavailable) {
		t.Errorf("reading: %v", err)
	}
	if err := l.Add(t.Context(), []seen.Sighting{newSighting("a", 1)}); !errors.Is(err, seen.ErrUnavailable) {
		t.Errorf("writing: %v", err)
	}
}

func TestTheListIsBounded(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	l := seen.NewList(servers.RedisAt{Addr: server.Addr()}.Client(t))
	for part := range int64(3) {
		var many []seen.Sighting
		for i := range part*seen.MaxRecent + 600 {
			many = append(many, newSighting(fmt.Sprint(part, "-", i), i))
		}
		addSightings(t, l, many...)
	}
	members, err := server.ZMembers("recent:devices")
	if err != nil || len(members) != seen.MaxRecent {
		t.Errorf("%d members, %v: want %d", len(members), err, seen.MaxRecent)
	}
}

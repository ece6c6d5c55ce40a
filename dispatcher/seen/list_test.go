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
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// eachRedis runs a test on each kind of Redis, with two clients of one list.
func eachRedis(t *testing.T, test func(t *testing.T, one, other *seen.List)) {
	t.Helper()
	var redises servers.SharedRedis // not shared with other tests: a Redis has only one list
	t.Cleanup(redises.Close)
	redises.Each(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		test(t, seen.NewList(at.Client(t)), seen.NewList(at.Client(t)))
	})
}

func sighting(device string, ms int64) seen.Sighting {
	return seen.Sighting{Device: device, At: time.UnixMilli(ms).UTC()}
}

func add(t *testing.T, l *seen.List, all ...seen.Sighting) {
	t.Helper()
	if err := l.Add(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

func newest(t *testing.T, l *seen.List) []seen.Sighting {
	t.Helper()
	all, err := l.Newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNewestFirstWithoutDuplicates(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, one, other *seen.List) {
		t.Helper()
		if got := newest(t, one); len(got) != 0 {
			t.Errorf("at first %v", got)
		}
		const now = 1_790_000_000_000
		add(t, one, sighting("a", now), sighting("B", now+2), sighting("a", now+5), sighting("a", now+1))
		add(t, other, sighting("c", now+3), sighting("a", now-7), sighting("B", now+9))
		add(t, other)
		want := []seen.Sighting{sighting("B", now+9), sighting("a", now+5), sighting("c", now+3)}
		for _, l := range []*seen.List{one, other} {
			if diff := cmp.Diff(want, newest(t, l)); diff != "" {
				t.Error(diff)
			}
		}
	})
}

func TestOnlyTheNewestAreKept(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, one, other *seen.List) {
		t.Helper()
		var many []seen.Sighting
		for i := range int64(3 * seen.Kept) {
			many = append(many, sighting(fmt.Sprint("d-", i), i))
		}
		add(t, one, many...)
		add(t, other, sighting("old", 1), sighting("new", 10_000))
		got := newest(t, one)
		if len(got) != seen.Kept || got[0].Device != "new" || got[1].Device != "d-2999" || got[seen.Kept-1].Device != "d-2001" {
			t.Errorf("%d kept, from %v to %v", len(got), got[0], got[len(got)-1])
		}
	})
}

// TestLatestTimeStaysOfManyAtOnce checks that the latest time of a device stays if several replicas add the
// same devices concurrently.
func TestLatestTimeStaysOfManyAtOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, one, other *seen.List) {
		t.Helper()
		var wait sync.WaitGroup
		for n := range 8 {
			wait.Go(func() {
				l := []*seen.List{one, other}[n%2]
				for round := range 20 {
					var part []seen.Sighting
					for d := range 50 {
						part = append(part, sighting(fmt.Sprint("d-", d), int64(1000*d+20*n+round)))
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
			want = append(want, sighting(fmt.Sprint("d-", d), int64(1000*d+20*7+19)))
		}
		slices.Reverse(want)
		if diff := cmp.Diff(want, newest(t, one)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRedisMayLoseAllOrBeAway(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	l := seen.NewList(servers.RedisAt{Addr: server.Addr()}.Client(t))
	add(t, l, sighting("a", 1))
	server.FlushAll() // Redis lost all data, including the script
	add(t, l, sighting("b", 2))
	if diff := cmp.Diff([]seen.Sighting{sighting("b", 2)}, newest(t, l)); diff != "" {
		t.Error(diff)
	}
	server.Close()
	if _, err := l.Newest(t.Context()); !errors.Is(err, seen.ErrUnavailable) {
		t.Errorf("reading: %v", err)
	}
	if err := l.Add(t.Context(), []seen.Sighting{sighting("a", 1)}); !errors.Is(err, seen.ErrUnavailable) {
		t.Errorf("writing: %v", err)
	}
}

func TestTheListIsBounded(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	l := seen.NewList(servers.RedisAt{Addr: server.Addr()}.Client(t))
	for part := range int64(3) {
		var many []seen.Sighting
		for i := range part*seen.Kept + 600 {
			many = append(many, sighting(fmt.Sprint(part, "-", i), i))
		}
		add(t, l, many...)
	}
	members, err := server.ZMembers("recent:devices")
	if err != nil || len(members) != seen.Kept {
		t.Errorf("%d members, %v: want %d", len(members), err, seen.Kept)
	}
}

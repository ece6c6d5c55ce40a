package recent_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/recent"
)

// eachRedis runs a test on each kind, with two clients of one list.
func eachRedis(t *testing.T, test func(t *testing.T, one, other *recent.List)) {
	t.Helper()
	var servers testservers.SharedRedis // of this test alone: there is one list in a Redis
	t.Cleanup(servers.Close)
	servers.Each(t, func(t *testing.T, at testservers.RedisAt) {
		t.Helper()
		test(t, recent.New(at.Client(t)), recent.New(at.Client(t)))
	})
}

func seen(device string, ms int64) recent.Seen {
	return recent.Seen{Device: device, At: time.UnixMilli(ms).UTC()}
}

func add(t *testing.T, l *recent.List, all ...recent.Seen) {
	t.Helper()
	if err := l.Add(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

func newest(t *testing.T, l *recent.List) []recent.Seen {
	t.Helper()
	all, err := l.Newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNewestFirstWithoutDuplicates(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, one, other *recent.List) {
		t.Helper()
		if got := newest(t, one); len(got) != 0 {
			t.Errorf("at first %v", got)
		}
		const now = 1_790_000_000_000
		add(t, one, seen("a", now), seen("B", now+2), seen("a", now+5), seen("a", now+1))
		add(t, other, seen("c", now+3), seen("a", now-7), seen("B", now+9))
		add(t, other)
		want := []recent.Seen{seen("B", now+9), seen("a", now+5), seen("c", now+3)}
		for _, l := range []*recent.List{one, other} {
			if diff := cmp.Diff(want, newest(t, l)); diff != "" {
				t.Error(diff)
			}
		}
	})
}

func TestOnlyTheNewestAreKept(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, one, other *recent.List) {
		t.Helper()
		var many []recent.Seen
		for i := range int64(3 * recent.Kept) {
			many = append(many, seen(fmt.Sprint("d-", i), i))
		}
		add(t, one, many...)
		add(t, other, seen("old", 1), seen("new", 10_000))
		got := newest(t, one)
		if len(got) != recent.Kept || got[0].Device != "new" || got[1].Device != "d-2999" || got[recent.Kept-1].Device != "d-2001" {
			t.Errorf("%d kept, from %v to %v", len(got), got[0], got[len(got)-1])
		}
	})
}

// TestLatestTimeStaysOfManyAtOnce: replicas note the same devices.
func TestLatestTimeStaysOfManyAtOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, one, other *recent.List) {
		t.Helper()
		var wait sync.WaitGroup
		for n := range 8 {
			wait.Go(func() {
				l := []*recent.List{one, other}[n%2]
				for round := range 20 {
					var part []recent.Seen
					for d := range 50 {
						part = append(part, seen(fmt.Sprint("d-", d), int64(1000*d+20*n+round)))
					}
					if err := l.Add(t.Context(), part); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		var want []recent.Seen
		for d := range 50 {
			want = append(want, seen(fmt.Sprint("d-", d), int64(1000*d+20*7+19)))
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
	l := recent.New(testservers.RedisAt{Addr: server.Addr()}.Client(t))
	add(t, l, seen("a", 1))
	server.FlushAll() // it lost all: also the script
	add(t, l, seen("b", 2))
	if diff := cmp.Diff([]recent.Seen{seen("b", 2)}, newest(t, l)); diff != "" {
		t.Error(diff)
	}
	server.Close()
	if _, err := l.Newest(t.Context()); !errors.Is(err, recent.ErrUnavailable) {
		t.Errorf("reading: %v", err)
	}
	if err := l.Add(t.Context(), []recent.Seen{seen("a", 1)}); !errors.Is(err, recent.ErrUnavailable) {
		t.Errorf("writing: %v", err)
	}
}

func TestTheListIsBounded(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	l := recent.New(testservers.RedisAt{Addr: server.Addr()}.Client(t))
	for part := range int64(3) {
		var many []recent.Seen
		for i := range part*recent.Kept + 600 {
			many = append(many, seen(fmt.Sprint(part, "-", i), i))
		}
		add(t, l, many...)
	}
	members, err := server.ZMembers("recent:devices")
	if err != nil || len(members) != recent.Kept {
		t.Errorf("%d members, %v: want %d", len(members), err, recent.Kept)
	}
}

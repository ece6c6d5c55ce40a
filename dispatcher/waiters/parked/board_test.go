package parked_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const patience = time.Minute // what no machine reaches that only stands still for a while

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eachRedis runs a test on each kind, on servers of its own: on a Cluster node who
// listens hears all.
func eachRedis(t *testing.T, test func(t *testing.T, at servers.RedisAt)) {
	t.Helper()
	var redises servers.SharedRedis
	t.Cleanup(redises.Close)
	redises.Each(t, test)
}

// replica hears what is said to it.
type replica struct {
	*parked.Board
	t     *testing.T
	said  chan string
	hears chan struct{}
}

func (r *replica) Newer(device string, number int64) {
	r.said <- fmt.Sprint("newer ", device, " ", number)
}

func (r *replica) Called(calls []parked.Call) { r.said <- fmt.Sprint("called ", calls) }

// replicaOf listens until the test ends, and hears when this returns.
func replicaOf(t *testing.T, client redis.UniversalClient) *replica {
	t.Helper()
	return impatient(t, client, patience) // what stands still for a while must not lose messages
}

func databaseOf(client redis.UniversalClient) int {
	if one, ok := client.(*redis.Client); ok {
		return one.Options().DB
	}
	return 0
}

// impatient tries a connection that was silent for quiet.
func impatient(t *testing.T, client redis.UniversalClient, quiet time.Duration) *replica {
	t.Helper()
	r := &replica{Board: parked.New(client, databaseOf(client)), t: t, said: make(chan string, 1000), hears: make(chan struct{}, 1000)}
	r.TriesAfter(quiet)
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { r.Listen(ctx, r, func() { r.hears <- struct{}{} }) })
	t.Cleanup(func() {
		stop()
		ended.Wait()
	})
	r.isHearing()
	return r
}

func (r *replica) isHearing() {
	r.t.Helper()
	select {
	case <-r.hears:
	case <-time.After(patience):
		r.t.Fatal("hears nothing")
	}
}

func (r *replica) next() string {
	r.t.Helper()
	select {
	case said := <-r.said:
		return said
	case <-time.After(patience):
		r.t.Fatal("heard nothing")
		return ""
	}
}

func (r *replica) parks(device string) int64 {
	r.t.Helper()
	number, _, err := r.Newest(r.t.Context(), device, time.Minute)
	if err != nil {
		r.t.Fatal(err)
	}
	return number
}

// lost says whether a report of device "a" that lost its connection was the newest.
func (r *replica) lost(number int64) (newest bool) {
	r.t.Helper()
	others, err := r.Gone(r.t.Context(), []parked.Report{{Device: "stranger", Number: 7}, {Device: "a", Number: number}})
	if err != nil || len(others) == 0 || others[0].Device != "stranger" {
		r.t.Fatal(others, err)
	}
	return len(others) == 2
}

func (r *replica) wakes(calls ...parked.Call) {
	r.t.Helper()
	if err := r.Wake(r.t.Context(), calls); err != nil {
		r.t.Fatal(err)
	}
}

// Only who parked the one before is of interest, and numbers rise.
func TestNewestIsToldToOtherReplicas(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		one, other := replicaOf(t, at.Client(t)), replicaOf(t, at.Client(t))
		numbers := []int64{one.parks("a:b"), one.parks("a:b"), other.parks("a:b"), other.parks("c"), one.parks("a:b")}
		if numbers[3] = numbers[2]; !slices.IsSorted(numbers) || numbers[0] == numbers[1] || numbers[1] == numbers[2] || numbers[2] == numbers[4] {
			t.Errorf("numbers %d do not rise", numbers)
		}
		one.wakes() // nothing
		one.wakes(parked.Call{Device: "a:b", Pool: "p", Age: 3 * time.Millisecond}, parked.Call{Device: "c"})
		want := []string{fmt.Sprint("newer a:b ", numbers[2]), fmt.Sprint("newer a:b ", numbers[4]), "called [{a:b p 3ms} {c  0s}]"}
		for _, r := range []*replica{one, other} {
			if diff := cmp.Diff(want, []string{r.next(), r.next(), r.next()}); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// A connection that ended is that of the device's newest report or of an older
// one; who parks the next after the newest one's is told, once.
func TestGapIsToldOnceToWhoParksNext(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		one, other := replicaOf(t, at.Client(t)), replicaOf(t, at.Client(t))
		gap := func(r *replica) (number int64, gap bool) {
			t.Helper()
			number, gap, err := r.Newest(t.Context(), "a", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return number, gap
		}
		first, _ := gap(one)
		second, none := gap(other)
		if none || one.lost(first) {
			t.Error("the connection of an older report is that of its device")
		}
		for range 2 { // it may be sent again
			if !other.lost(second) {
				t.Error("the connection of the newest report is not that of its device")
			}
		}
		third, after := gap(one)
		fourth, later := gap(one)
		if !after || later || third <= second || other.lost(second) || other.lost(third) || !one.lost(fourth) {
			t.Errorf("after a gap: %d %v, then %d %v", third, after, fourth, later)
		}
		one.wakes(parked.Call{Device: "end"})
		for _, want := range []string{fmt.Sprint("newer a ", second), "called [{end  0s}]"} {
			if got := one.next(); got != want { // and nothing of the gap
				t.Errorf("heard %q, want %q", got, want)
			}
		}
	})
}

// A loss of Redis makes no number lower.
func TestNumbersRiseOverALossOfRedis(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		client := at.Client(t)
		r := replicaOf(t, client)
		before := r.parks("a")
		if err := client.FlushDB(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if after := r.parks("a"); after <= before {
			t.Errorf("%d after %d", after, before)
		}
	})
}

// The memory of a device goes when its report can no longer be parked.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	r := replicaOf(t, servers.RedisAt{Addr: server.Addr()}.Client(t))
	r.parks("a")
	server.FastForward(time.Minute + time.Second)
	if keys := server.Keys(); len(keys) != 0 {
		t.Errorf("left: %q", keys)
	}
}

// Two installations in databases of one Redis do not hear one another.
func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	at := servers.RedisAt{Addr: servers.Redis(t).Addr}
	zero := replicaOf(t, at.Client(t))
	at.DB = 1
	one := replicaOf(t, at.Client(t))
	one.wakes(parked.Call{Device: "in-one"})
	zero.wakes(parked.Call{Device: "in-zero"})
	if got := zero.next(); got != "called [{in-zero  0s}]" {
		t.Errorf("database 0 heard %q", got)
	}
	if got := one.next(); got != "called [{in-one  0s}]" {
		t.Errorf("database 1 heard %q", got)
	}
}

func TestListenerComesBackWithRedis(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	r := replicaOf(t, servers.RedisAt{Addr: server.Addr}.Client(t))
	for range 2 {
		server.Kill()
		server.Start()
		r.isHearing()
		r.wakes(parked.Call{Device: "a"})
		if got := r.next(); got != "called [{a  0s}]" {
			t.Errorf("heard %q", got)
		}
	}
}

// A connection that is silent is no connection: the client's own channels would
// wait for it for ever.
func TestSilentConnectionIsLeft(t *testing.T) {
	t.Parallel()
	link := servers.NewProxy(t, servers.Redis(t).Addr)
	again := make(chan struct{}, 1000)
	r := impatient(t, servers.RedisAt{Addr: link.Addr}.Client(t), 200*time.Millisecond)
	link.OnConnection(func() func([]byte) {
		again <- struct{}{}
		return func([]byte) {}
	})
	link.HoldReplies()
	select {
	case <-again:
	case <-time.After(patience):
		t.Fatal("never left")
	}
	link.ReleaseReplies()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; { // it may take a slow answer for silence, again
		r.wakes(parked.Call{Device: "a"})
		select {
		case <-r.said:
			return
		case <-tick.C:
		case <-deadline:
			t.Fatal("never heard anything again")
		}
	}
}

func TestWithoutRedisItIsUnavailable(t *testing.T) {
	t.Parallel()
	board := parked.New(servers.RedisAt{Addr: servers.FreeAddr(t)}.Client(t), 0)
	if _, _, err := board.Newest(t.Context(), "a", time.Minute); !errors.Is(err, parked.ErrUnavailable) {
		t.Errorf("newest: %v", err)
	}
	if _, err := board.Gone(t.Context(), []parked.Report{{Device: "a", Number: 1}}); !errors.Is(err, parked.ErrUnavailable) {
		t.Errorf("gone: %v", err)
	}
	if err := board.Wake(t.Context(), []parked.Call{{Device: "a"}}); !errors.Is(err, parked.ErrUnavailable) {
		t.Errorf("wake: %v", err)
	}
}

// A replica that hears what it cannot read goes on hearing.
func TestUnknownMessagesAreIgnored(t *testing.T) {
	t.Parallel()
	client := servers.InProcessRedis(t).Client(t)
	r := replicaOf(t, client)
	for _, message := range []string{"", "later", "newer", "newer x a", "newer 5", "wake", "wake {", "wake 7"} {
		if err := client.Publish(t.Context(), "parked:0", message).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r.wakes(parked.Call{Device: "a"})
	for {
		switch got := r.next(); got {
		case "called [{a  0s}]":
			return
		case "newer  5":
		default:
			t.Errorf("heard %q", got)
		}
	}
}

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

const patience = time.Minute // longer than any pause of a machine that is only slow

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eachRedis runs a test on each kind of Redis, on servers of its own, because a listener on a
// Cluster node receives the messages of all tests.
func eachRedis(t *testing.T, test func(t *testing.T, at servers.RedisAt)) {
	t.Helper()
	var redises servers.SharedRedis
	t.Cleanup(redises.Close)
	redises.Each(t, test)
}

// replica records the messages that it receives.
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

// replicaOf returns a replica that is subscribed already, and listens until the test ends.
func replicaOf(t *testing.T, client redis.UniversalClient) *replica {
	t.Helper()
	return impatient(t, client, patience) // a machine that pauses must not lose messages
}

func databaseOf(client redis.UniversalClient) int {
	if one, ok := client.(*redis.Client); ok {
		return one.Options().DB
	}
	return 0
}

// impatient returns a replica that tests its connection after quiet without a message.
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

// lost records that the report of device "a" with this number lost its connection. It reports whether the report was
// the newest of the device.
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

// Only the replica that parked the previous report of the device is notified. The numbers of a device increase.
func TestNewestIsToldToOtherReplicas(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		one, other := replicaOf(t, at.Client(t)), replicaOf(t, at.Client(t))
		numbers := []int64{one.parks("a:b"), one.parks("a:b"), other.parks("a:b"), other.parks("c"), one.parks("a:b")}
		if numbers[3] = numbers[2]; !slices.IsSorted(numbers) || numbers[0] == numbers[1] || numbers[1] == numbers[2] || numbers[2] == numbers[4] {
			t.Errorf("numbers %d do not rise", numbers)
		}
		one.wakes() // no calls, so no message
		one.wakes(parked.Call{Device: "a:b", Pool: "p", Age: 3 * time.Millisecond}, parked.Call{Device: "c"})
		want := []string{fmt.Sprint("newer a:b ", numbers[2]), fmt.Sprint("newer a:b ", numbers[4]), "called [{a:b p 3ms} {c  0s}]"}
		for _, r := range []*replica{one, other} {
			if diff := cmp.Diff(want, []string{r.next(), r.next(), r.next()}); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// Gone distinguishes the connection of the device's newest report from the connection of an older
// report. After the end of the newest report's connection, Newest returns a gap for the next parked
// report, once.
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
		for range 2 { // Gone may be repeated
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
			if got := one.next(); got != want { // there is no message about the gap
				t.Errorf("heard %q, want %q", got, want)
			}
		}
	})
}

// Numbers increase even if Redis loses its data.
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

// The key of a device is deleted when its report can no longer be parked.
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

// Two installations in different databases of one Redis do not receive each other's messages.
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

// Listen closes a silent connection and connects again. The channels of the Redis client would wait
// on such a connection forever.
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
	for deadline := time.After(patience); ; { // a slow answer may count as silence once more
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

// A replica ignores messages that it cannot parse, and continues to listen.
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

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
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const patience = time.Minute // longer than any pause of a machine that is only slow

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runOnEachRedis runs a test on each kind of Redis. The test gets servers of its own, because a listener on a
// Cluster node receives the messages of all tests.
func runOnEachRedis(t *testing.T, test func(t *testing.T, at servers.RedisAt)) {
	t.Helper()
	var redises servers.SharedRedis
	t.Cleanup(redises.Close)
	redises.RunOnEach(t, test)
}

// replica is a replica in these tests. It records the messages that it receives.
type replica struct {
	*parked.Board
	t          *testing.T
	messages   chan string
	subscribed chan struct{}
}

func (r *replica) OnNewerReport(device string, number int64) {
	r.messages <- fmt.Sprint("newer ", device, " ", number)
}

func (r *replica) OnWake(calls []parked.WakeMessage) { r.messages <- fmt.Sprint("called ", calls) }

// newReplica returns a replica that has already subscribed to its messages. It listens until the test ends.
func newReplica(t *testing.T, client redis.UniversalClient) *replica {
	t.Helper()
	return newImpatientReplica(t, client, patience) // a machine that pauses must not lose messages
}

func redisDatabase(client redis.UniversalClient) int {
	if one, ok := client.(*redis.Client); ok {
		return one.Options().DB
	}
	return 0
}

// newImpatientReplica returns a replica that tests its connection after it has received no message for quietTime.
func newImpatientReplica(t *testing.T, client redis.UniversalClient, quietTime time.Duration) *replica {
	t.Helper()
	r := &replica{Board: parked.New(client, redisDatabase(client)), t: t, messages: make(chan string, 1000), subscribed: make(chan struct{}, 1000)}
	r.SetQuietTime(quietTime)
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { r.Listen(ctx, r, func() { r.subscribed <- struct{}{} }) })
	t.Cleanup(func() {
		stop()
		ended.Wait()
	})
	r.awaitSubscribed()
	return r
}

func (r *replica) awaitSubscribed() {
	r.t.Helper()
	await.Receive(r.t, r.subscribed, "hears nothing")
}

func (r *replica) nextMessage() string {
	r.t.Helper()
	return await.Receive(r.t, r.messages, "heard nothing")
}

func (r *replica) parkReport(device string) int64 {
	r.t.Helper()
	number, _, err := r.RegisterNewestReport(r.t.Context(), device, time.Minute)
	must.Succeed(r.t, err)
	return number
}

// reportGone records that device "a" has lost the connection of its report with this number. It reports whether
// this was the newest report of the device.
func (r *replica) reportGone(number int64) (isNewest bool) {
	r.t.Helper()
	others, err := r.RecordClosedConnections(r.t.Context(), []parked.Report{{Device: "stranger", Number: 7}, {Device: "a", Number: number}})
	if err != nil || len(others) == 0 || others[0].Device != "stranger" {
		r.t.Fatal(others, err)
	}
	return len(others) == 2
}

func (r *replica) sendWakes(calls ...parked.WakeMessage) {
	r.t.Helper()
	must.Succeed(r.t, r.Wake(r.t.Context(), calls))
}

// A device parks a new report. Only the replica that parked the previous report of this device must be notified. The numbers of the
// device's reports must increase.
func TestNewestIsToldToOtherReplicas(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		one, other := newReplica(t, at.Client(t)), newReplica(t, at.Client(t))
		numbers := []int64{one.parkReport("a:b"), one.parkReport("a:b"), other.parkReport("a:b"), other.parkReport("c"), one.parkReport("a:b")}
		if numbers[3] = numbers[2]; !slices.IsSorted(numbers) || numbers[0] == numbers[1] || numbers[1] == numbers[2] || numbers[2] == numbers[4] {
			t.Errorf("numbers %d do not rise", numbers)
		}
		one.sendWakes() // a call without wake-ups sends no message
		one.sendWakes(parked.WakeMessage{Device: "a:b", Pool: "p", Age: 3 * time.Millisecond}, parked.WakeMessage{Device: "c"})
		want := []string{fmt.Sprint("newer a:b ", numbers[2]), fmt.Sprint("newer a:b ", numbers[4]), "called [{a:b p 3ms} {c  0s}]"}
		for _, r := range []*replica{one, other} {
			if diff := cmp.Diff(want, []string{r.nextMessage(), r.nextMessage(), r.nextMessage()}); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// RecordClosedConnections is called for a connection that has ended. It must distinguish the connection of the device's newest report from the
// connection of an older report. After the connection of the newest report has ended, RegisterNewestReport must return true (a gap) for the next
// parked report, and only for this one.
func TestGapIsToldOnceToWhoParksNext(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		one, other := newReplica(t, at.Client(t)), newReplica(t, at.Client(t))
		gap := func(r *replica) (number int64, gap bool) {
			t.Helper()
			number, gap, err := r.RegisterNewestReport(t.Context(), "a", time.Minute)
			must.Succeed(t, err)
			return number, gap
		}
		first, _ := gap(one)
		second, none := gap(other)
		if none || one.reportGone(first) {
			t.Error("the connection of an older report is that of its device")
		}
		for range 2 { // RecordClosedConnections may be repeated
			if !other.reportGone(second) {
				t.Error("the connection of the newest report is not that of its device")
			}
		}
		third, after := gap(one)
		fourth, later := gap(one)
		if !after || later || third <= second || other.reportGone(second) || other.reportGone(third) || !one.reportGone(fourth) {
			t.Errorf("after a gap: %d %v, then %d %v", third, after, fourth, later)
		}
		one.sendWakes(parked.WakeMessage{Device: "end"})
		for _, want := range []string{fmt.Sprint("newer a ", second), "called [{end  0s}]"} {
			if got := one.nextMessage(); got != want { // there is no message about the gap
				t.Errorf("heard %q, want %q", got, want)
			}
		}
	})
}

// The numbers of a device's reports must also increase if Redis loses its data in between.
func TestNumbersRiseOverALossOfRedis(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		client := at.Client(t)
		r := newReplica(t, client)
		before := r.parkReport("a")
		must.Succeed(t, client.FlushDB(t.Context()).Err())
		if after := r.parkReport("a"); after <= before {
			t.Errorf("%d after %d", after, before)
		}
	})
}

// When the report of a device can no longer be parked, the Redis key of the device must be deleted.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	r := newReplica(t, servers.RedisAt{Addr: server.Addr()}.Client(t))
	r.parkReport("a")
	server.FastForward(time.Minute + time.Second)
	if keys := server.Keys(); len(keys) != 0 {
		t.Errorf("left: %q", keys)
	}
}

// Two installations use different databases of one Redis. They must not receive each other's messages.
func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	at := servers.RedisAt{Addr: servers.StartRedis(t).Addr}
	zero := newReplica(t, at.Client(t))
	at.DB = 1
	one := newReplica(t, at.Client(t))
	one.sendWakes(parked.WakeMessage{Device: "in-one"})
	zero.sendWakes(parked.WakeMessage{Device: "in-zero"})
	if got := zero.nextMessage(); got != "called [{in-zero  0s}]" {
		t.Errorf("database 0 heard %q", got)
	}
	if got := one.nextMessage(); got != "called [{in-one  0s}]" {
		t.Errorf("database 1 heard %q", got)
	}
}

func TestListenerComesBackWithRedis(t *testing.T) {
	t.Parallel()
	server := servers.StartRedis(t)
	r := newReplica(t, servers.RedisAt{Addr: server.Addr}.Client(t))
	for range 2 {
		server.Kill()
		server.Start()
		r.awaitSubscribed()
		r.sendWakes(parked.WakeMessage{Device: "a"})
		if got := r.nextMessage(); got != "called [{a  0s}]" {
			t.Errorf("heard %q", got)
		}
	}
}

// A connection to Redis is silent. Listen must close it and connect again. The channels of the Redis client library would wait on this
// connection forever.
func TestSilentConnectionIsLeft(t *testing.T) {
	t.Parallel()
	link := servers.NewProxy(t, servers.StartRedis(t).Addr)
	again := make(chan struct{}, 1000)
	r := newImpatientReplica(t, servers.RedisAt{Addr: link.Addr}.Client(t), 200*time.Millisecond)
	link.OnConnection(func() func([]byte) {
		again <- struct{}{}
		return func([]byte) {}
	})
	link.HoldReplies()
	await.Receive(t, again, "never left")
	link.ReleaseReplies()
	await.True(t, "a message", func() bool { // a slow answer may count as silence once more
		r.sendWakes(parked.WakeMessage{Device: "a"})
		select {
		case <-r.messages:
			return true
		default:
			return false
		}
	})
}

func TestWithoutRedisItIsUnavailable(t *testing.T) {
	t.Parallel()
	board := parked.New(servers.RedisAt{Addr: servers.FreeAddr(t)}.Client(t), 0)
	if _, _, err := board.RegisterNewestReport(t.Context(), "a", time.Minute); !errors.Is(err, parked.ErrUnavailable) {
		t.Errorf("newest: %v", err)
	}
	if _, err := board.RecordClosedConnections(t.Context(), []parked.Report{{Device: "a", Number: 1}}); !errors.Is(err, parked.ErrUnavailable) {
		t.Errorf("gone: %v", err)
	}
	if err := board.Wake(t.Context(), []parked.WakeMessage{{Device: "a"}}); !errors.Is(err, parked.ErrUnavailable) {
		t.Errorf("wake: %v", err)
	}
}

// A replica receives a message that it cannot parse. It must ignore the message and continue to listen.
func TestUnknownMessagesAreIgnored(t *testing.T) {
	t.Parallel()
	client := servers.InProcessRedis(t).Client(t)
	r := newReplica(t, client)
	for _, message := range []string{"", "later", "newer", "newer x a", "newer 5", "wake", "wake {", "wake 7"} {
		must.Succeed(t, client.Publish(t.Context(), "parked:0", message).Err())
	}
	r.sendWakes(parked.WakeMessage{Device: "a"})
	for {
		switch got := r.nextMessage(); got {
		case "called [{a  0s}]":
			return
		case "newer  5":
		default:
			t.Errorf("heard %q", got)
		}
	}
}

package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// startLongPoll sends a report of the device that may be parked. It returns the channel for the reply. If the dispatcher could not decide, as
// on a slow machine, the device sends the report again.
func (i *instance) startLongPoll(t *testing.T, device string) <-chan devices.Reply {
	t.Helper()
	replies := make(chan devices.Reply, 1)
	poll := func() (reply devices.Reply, err error) {
		request, err := http.NewRequest(http.MethodPost, i.url+"/v1/devices/"+device+"/report", strings.NewReader(`{"id":"waits"}`))
		if err != nil {
			return reply, err
		}
		request.Header.Set("Authorization", "Bearer "+i.fleet)
		request.Header.Set("Prefer", "wait=60")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return reply, err
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusServiceUnavailable {
			return devices.Reply{Reason: devices.ReasonUnavailable}, nil
		}
		return reply, json.NewDecoder(response.Body).Decode(&reply)
	}
	go func() {
		defer close(replies)
		for {
			reply, err := poll()
			if err != nil {
				t.Errorf("long poll of %s: %v", device, err)
				return
			}
			if reply.Reason != devices.ReasonUnavailable {
				replies <- reply
				return
			}
		}
	}()
	return replies
}

// startBreakableLongPoll sends a report of the device that may be parked. The returned function breaks its
// connection.
func (i *instance) startBreakableLongPoll(t *testing.T, device string) (cut func()) {
	t.Helper()
	link := servers.NewProxy(t, strings.TrimPrefix(i.url, "http://"))
	request, err := http.NewRequest(http.MethodPost, "http://"+link.Addr+"/v1/devices/"+device+"/report", strings.NewReader(`{"id":"breaks"}`))
	must.Succeed(t, err)
	request.Header.Set("Authorization", "Bearer "+i.fleet)
	request.Header.Set("Prefer", "wait=60")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err == nil {
			t.Errorf("the long poll of %s was answered with %d", device, response.StatusCode)
			_ = response.Body.Close()
		}
	}()
	t.Cleanup(func() {
		link.Cut()
		<-ended
	})
	return link.Cut
}

// waitForParked waits until the number of reports that are parked at this replica is want.
func (i *instance) waitForParked(t *testing.T, want string) {
	t.Helper()
	await.True(t, want+" parked", func() bool {
		return bytes.Contains(i.callOperator(t, http.MethodGet, "/metrics", ""), []byte("dispatcher_reports_parked "+want+"\n"))
	})
}

func TestEndAnswersWhatIsParked(t *testing.T) {
	t.Parallel()
	i, _ := startServing(t, serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL()))
	replies := []<-chan devices.Reply{i.startLongPoll(t, "a"), i.startLongPoll(t, "b"), i.startLongPoll(t, "c")}
	i.waitForParked(t, "3")
	if err := i.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	for n, replies := range replies {
		if reply := <-replies; reply.Reason != devices.ReasonNone || reply.ReportAfterMS > 5000 {
			t.Errorf("report %d: %+v, want none, and soon again at another replica", n, reply)
		}
	}
}

// TestNewestLongPollWinsOverReplicas checks a device whose report is parked at one replica and which reports to
// another replica, as can happen behind a load balancer: the parked report ends.
func TestNewestLongPollWinsOverReplicas(t *testing.T) {
	t.Parallel()
	server, dsn := servers.StartRedis(t), sharedPostgres.NewLedger(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	one, _ := startServing(t, serveConfig(t, dsn, server.URL()))
	other, _ := startServing(t, serveConfig(t, dsn, server.URL()))
	await.True(t, "both hear one another", func() bool {
		hearing, err := client.PubSubNumSub(t.Context(), "parked:0").Result()
		return err == nil && hearing["parked:0"] == 2
	})
	older := one.startLongPoll(t, "a")
	one.waitForParked(t, "1")
	begin := time.Now()
	newer := other.startLongPoll(t, "a")
	if reply := <-older; reply.Reason != devices.ReasonNone {
		t.Errorf("the older report: %+v, want none", reply)
	}
	t.Logf("ended %s after the newer was sent", time.Since(begin).Round(time.Millisecond))
	other.waitForParked(t, "1")
	one.waitForParked(t, "0")
	if err := other.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	<-newer
}

// TestABrokenLongPollIsOfferedNothing breaks the connection of a parked report. The device must count as not reachable
// at once, before a slot is offered to it, and must keep its position in the queue. The next free slot must go at once
// to the next waiter, whichever replica has parked that waiter's report.
func TestABrokenLongPollIsOfferedNothing(t *testing.T) {
	t.Parallel()
	for name, replicas := range map[string]int{"one replica": 1, "two replicas": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dsn := servers.StartRedis(t), sharedPostgres.NewLedger(t)
			client := redis.NewClient(&redis.Options{Addr: server.Addr})
			t.Cleanup(func() { _ = client.Close() })
			one, _ := startServing(t, serveConfig(t, dsn, server.URL()))
			other := one
			if replicas == 2 {
				other, _ = startServing(t, serveConfig(t, dsn, server.URL()))
			}
			one.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1}`)
			one.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["holds","breaks","waits"]}`)
			held := one.sendReport(t, "holds", `{"id":"1"}`)
			if held.Task == nil {
				t.Fatalf("%+v, want a grant", held)
			}
			breaks := other.startBreakableLongPoll(t, "breaks")
			reachable := func(want bool) func() bool {
				return func() bool {
					position, err := client.HGet(t.Context(), "slots:{p}:waiter", "breaks").Result()
					return err == nil && strings.Contains(position, `"class":"T"`) == want
				}
			}
			await.True(t, "a device that can be told", reachable(true))
			other.waitForParked(t, "1")
			replies := one.startLongPoll(t, "waits")
			breaks()
			await.True(t, "a device that cannot be told", reachable(false))
			if in, err := client.HExists(t.Context(), "slots:{p}:waiter", "breaks").Result(); err != nil || !in {
				t.Errorf("it lost its position in the queue: %v, %v", in, err)
			}
			begin := time.Now()
			one.sendReport(t, "holds", fmt.Sprintf(`{"id":"2","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, held.Task.ID, held.Task.Token))
			if reply := <-replies; reply.Task == nil {
				t.Errorf("the next in line: %+v, want a grant", reply)
			}
			t.Logf("handed on %s after the result was sent", time.Since(begin).Round(time.Millisecond))
			if reply := other.sendReport(t, "breaks", `{"id":"3"}`); reply.Reason != devices.ReasonFull {
				t.Errorf("whose connection broke: %+v, want full", reply)
			}
		})
	}
}

// TestSlotsAreHandedOnTwiceASecond checks the interval of the pass "hand on". A replica may die after it has
// released a slot and before it has woken the waiter. Then another replica wakes the waiter within two of its
// passes, as TestWhatWasLeftUnsaidIsSaidWithinASecond checks.
func TestSlotsAreHandedOnTwiceASecond(t *testing.T) {
	t.Parallel()
	app := &App{dispatcher: dispatcher.New(dispatcher.Config{})}
	for _, p := range app.newPasses(backends{}).all {
		if p.name == "hand on" && p.every == 500*time.Millisecond {
			return
		}
	}
	t.Error("no pass hands on every 500 ms")
}

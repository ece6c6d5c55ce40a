package app

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/testservers"
)

// longPoll sends a report whose answer may wait, and returns where it comes.
func (i *instance) longPoll(t *testing.T, device string) <-chan devices.Reply {
	t.Helper()
	replies := make(chan devices.Reply, 1)
	request, err := http.NewRequest(http.MethodPost, i.url+"/v1/devices/"+device+"/report", strings.NewReader(`{"id":"waits"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+i.fleet)
	request.Header.Set("Prefer", "wait=60")
	go func() {
		defer close(replies)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Errorf("long poll of %s: %v", device, err)
			return
		}
		defer response.Body.Close()
		var body bytes.Buffer
		if _, err := body.ReadFrom(response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("long poll of %s: %d %s, %v", device, response.StatusCode, body.Bytes(), err)
			return
		}
		replies <- decodeReply(t, body.Bytes())
	}()
	return replies
}

// parked waits until so many reports are at a replica.
func (i *instance) parked(t *testing.T, want string) {
	t.Helper()
	eventually(t, want+" parked", func() bool {
		return bytes.Contains(i.operate(t, http.MethodGet, "/metrics", ""), []byte("dispatcher_reports_parked "+want+"\n"))
	})
}

func TestEndAnswersWhatIsParked(t *testing.T) {
	t.Parallel()
	i, _ := startServing(t, serveConfig(t, shared.NewDatabase(t), testservers.Redis(t).URL()))
	replies := []<-chan devices.Reply{i.longPoll(t, "a"), i.longPoll(t, "b"), i.longPoll(t, "c")}
	i.parked(t, "3")
	if err := i.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	for n, replies := range replies {
		if reply := <-replies; reply.Reason != devices.ReasonNone || reply.ReportAfterMS > 5000 {
			t.Errorf("report %d: %+v, want none, and soon again at another replica", n, reply)
		}
	}
}

// The report of a device that is parked at one replica ends when the device
// comes to another: behind a load balancer it may.
func TestNewestLongPollWinsOverReplicas(t *testing.T) {
	t.Parallel()
	server, dsn := testservers.Redis(t), shared.NewDatabase(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	one, _ := startServing(t, serveConfig(t, dsn, server.URL()))
	other, _ := startServing(t, serveConfig(t, dsn, server.URL()))
	eventually(t, "both hear one another", func() bool {
		hearing, err := client.PubSubNumSub(t.Context(), "parked:0").Result()
		return err == nil && hearing["parked:0"] == 2
	})
	older := one.longPoll(t, "a")
	one.parked(t, "1")
	begin := time.Now()
	newer := other.longPoll(t, "a")
	if reply := <-older; reply.Reason != devices.ReasonNone {
		t.Errorf("the older report: %+v, want none", reply)
	}
	t.Logf("ended %s after the newer was sent", time.Since(begin).Round(time.Millisecond))
	other.parked(t, "1")
	one.parked(t, "0")
	if err := other.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	<-newer
}

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	reportCount   = 100 // number of reports sent during the outage
	answerTimeout = 2 * time.Minute
)

// outageLength returns how long Postgres is not available: a minute. With -short it is just long enough for every
// report to be answered twice.
func outageLength() time.Duration {
	if testing.Short() {
		return 12 * time.Second
	}
	return time.Minute
}

// TestReportsAreAnsweredWithoutPostgres checks an outage of Postgres: for the first half it accepts requests and does
// not answer, and for the second half it is stopped. Every report over MQTT must be answered during the outage, and no
// result may be acknowledged. After the outage, the replica must continue with the same connection to the broker, and
// the result that the device kept must be recorded once.
func TestReportsAreAnsweredWithoutPostgres(t *testing.T) {
	t.Parallel()
	server := servers.StartPostgres(t)
	postgres := servers.NewProxy(t, server.Addr())
	broker := servers.StartMosquitto(t) // with its default limit of 20 messages in flight
	wire := servers.NewProxy(t, broker.Addr)
	var connections atomic.Int32
	wire.OnRequest(func(b []byte) {
		if bytes.HasPrefix(b, []byte{0x10}) && bytes.Contains(b, []byte("MQTT")) {
			connections.Add(1)
		}
	})
	r := startReplica(t, strings.ReplaceAll(server.NewDatabase(t), server.Addr(), postgres.Addr), servers.StartRedis(t).URL(),
		"DISPATCHER_MQTT_URL=tcp://"+wire.Addr)
	fleet := newListeningFleet(t, broker.URL)
	if got := fleet.reportUntilReply(t, "first", "hello", ""); got.Reason != devices.ReasonNone {
		t.Fatalf("%+v", got)
	}
	r.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1}`)
	r.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["meter"]}`)
	granted := fleet.reportUntilReply(t, "meter", "grant", "").Task
	if granted == nil {
		t.Fatal("no grant")
	}
	result := fmt.Sprintf(`"accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]`, granted.ID, granted.Token)

	machine := watchMachine(t.Context())
	postgres.HoldReplies()
	fleet.reportDuringOutage(t, result, func() {
		server.StopImmediately()
		postgres.ReleaseReplies()
	})
	server.Start()
	fleet.expectRecordedOnce(t, result)
	var task struct {
		State    string
		Attempts []any
	}
	if err := json.Unmarshal(r.callOperator(t, http.MethodGet, fmt.Sprint("/v1/tasks/", granted.ID), ""), &task); err != nil || task.State != "succeeded" || len(task.Attempts) != 1 {
		t.Errorf("%+v, %v; want one attempt", task, err)
	}
	for n := range reportCount {
		fleet.expectAnswered(t, fmt.Sprint("meter-", n))
	}
	if stood, _ := machine.stalls(); connections.Load() != 1 && stood < 5*time.Second { // the broker closes the connection of a client that stalls
		t.Errorf("%d connections to the broker, want the one", connections.Load())
	}
	r.stopCleanly(t)
}

// reportDuringOutage sends reports during the whole outage. Every tenth report contains the result of a meter. Each
// report must be answered, and no result may be acknowledged.
func (f *listeningFleet) reportDuringOutage(t *testing.T, result string, halfway func()) {
	t.Helper()
	tick := time.NewTicker(outageLength() / reportCount)
	defer tick.Stop()
	for n := range reportCount {
		if n == reportCount/2 {
			halfway()
		}
		device, what := fmt.Sprint("meter-", n), ""
		if n%10 == 0 {
			device, what = "meter", result
		}
		f.sendReport(device, fmt.Sprint("away-", n), what)
		<-tick.C
	}
	for n := range reportCount {
		if got, _ := f.waitForReply(t, fmt.Sprint("away-", n), answerTimeout); got.Reason != devices.ReasonUnavailable || len(got.Acks) != 0 || got.ReportAfterMS == 0 {
			t.Errorf("report %d: %+v, want unavailable without acks", n, got)
		}
	}
}

// expectAnswered sends reports of the device until one is answered from the ledger.
func (f *listeningFleet) expectAnswered(t *testing.T, device string) {
	t.Helper()
	var got devices.Reply
	for n := range reportCount {
		if got = f.reportUntilReply(t, device, fmt.Sprint(device, "-back-", n), ""); got.Reason == devices.ReasonNone {
			return
		}
	}
	t.Errorf("%s afterwards: %+v", device, got)
}

// expectRecordedOnce sends the result again and again until it is answered as a duplicate. It must have been
// recorded only once.
func (f *listeningFleet) expectRecordedOnce(t *testing.T, result string) {
	t.Helper()
	for n := 0; f.outcomeCount(devices.OutcomeDuplicate) == 0; n++ { // the device may miss replies
		if got := f.reportUntilReply(t, "meter", fmt.Sprint("again-", n), result); n == reportCount {
			t.Fatalf("never acknowledged: %+v", got)
		}
	}
	if n := f.outcomeCount(devices.OutcomeRecorded); n != 1 {
		t.Errorf("recorded %d times", n)
	}
}

// callOperator sends a request of an operator, which must succeed.
func (r *replica) callOperator(t *testing.T, method, path, body string) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.addr+path, strings.NewReader(body))
	must.Succeed(t, err)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	must.Succeed(t, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %d %s, %v", method, path, response.StatusCode, content, err)
	}
	return content
}

// listeningFleet sends reports of any device over one connection, and receives the replies to all devices.
type listeningFleet struct {
	client paho.Client

	mu       sync.Mutex
	replies  map[string]devices.Reply // the first reply to each report
	outcomes map[devices.Outcome]int  // counts of all replies
}

func newListeningFleet(t *testing.T, broker string) *listeningFleet {
	t.Helper()
	f := &listeningFleet{replies: make(map[string]devices.Reply), outcomes: make(map[devices.Outcome]int)}
	f.client = paho.NewClient(paho.NewClientOptions().AddBroker(broker).SetClientID("fleet").SetAutoReconnect(false))
	for _, step := range []func() paho.Token{
		f.client.Connect,
		func() paho.Token { return f.client.Subscribe("fleet/v1/+/reply", 1, f.receive) },
	} {
		if token := step(); !token.WaitTimeout(answerTimeout) || token.Error() != nil {
			t.Fatal(token.Error())
		}
	}
	t.Cleanup(func() { f.client.Disconnect(0) })
	return f
}

func (f *listeningFleet) receive(_ paho.Client, m paho.Message) {
	var reply devices.Reply
	_ = json.Unmarshal(m.Payload(), &reply) // a reply without its id counts as missed
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.replies[reply.Re]; !known {
		f.replies[reply.Re] = reply
	}
	for _, ack := range reply.Acks {
		f.outcomes[ack.Outcome]++
	}
}

func (f *listeningFleet) outcomeCount(o devices.Outcome) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.outcomes[o]
}

func (f *listeningFleet) sendReport(device, id, fields string) {
	body := fmt.Sprintf(`{"id":%q,%s}`, id, fields)
	f.client.Publish("fleet/v1/"+device+"/report", 1, false, strings.Replace(body, ",}", "}", 1))
}

// waitForReply waits for the first reply to a report.
func (f *listeningFleet) waitForReply(t *testing.T, id string, patience time.Duration) (reply devices.Reply, ok bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok && time.Now().Before(deadline); <-tick.C {
		f.mu.Lock()
		reply, ok = f.replies[id]
		f.mu.Unlock()
	}
	return reply, ok
}

// reportUntilReply sends a report again and again until a reply arrives. At the start, no replica may have
// subscribed to reports yet.
func (f *listeningFleet) reportUntilReply(t *testing.T, device, id, fields string) devices.Reply {
	t.Helper()
	for range int(answerTimeout / time.Second) {
		f.sendReport(device, id, fields)
		if reply, ok := f.waitForReply(t, id, time.Second); ok {
			return reply
		}
	}
	t.Fatalf("report %s was never answered", id)
	return devices.Reply{}
}

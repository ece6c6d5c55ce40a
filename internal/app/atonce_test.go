package app

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// reportConcurrently sends a report of one device to both replicas over both transports at the same time. Each report
// has its own id. reportConcurrently returns all replies.
func reportConcurrently(t *testing.T, replicas []*instance, m *mqttDevice, body string) []devices.Reply {
	t.Helper()
	const overMQTT = 2
	var all sync.WaitGroup
	begin := make(chan struct{})
	answers := make(chan devices.Reply, len(replicas)+overMQTT)
	for n, i := range replicas {
		all.Go(func() {
			<-begin
			status, content := i.call(t, http.MethodPost, "/v1/devices/"+string(m.id)+"/report", fleetToken, fmt.Sprintf(body, n))
			answers <- replyFromHTTP(t, status, content)
		})
	}
	all.Go(func() {
		<-begin
		for n := range overMQTT { // the broker distributes them to the replicas in turn
			m.Publish(devices.ReportTopic(m.id), 1, false, fmt.Sprintf(body, len(replicas)+n))
		}
		var refused []devices.Reply // on a busy machine, a report may be refused after 3 s, and its real reply may follow
		for heard := 0; heard < overMQTT; {
			limit := patience
			if len(refused) > 0 {
				limit = 10 * time.Second
			}
			reply, arrived := m.replyWithin(t, limit)
			switch {
			case !arrived && len(refused) == 0:
				t.Error("no reply")
				return
			case !arrived:
				answers <- refused[0]
				refused = refused[1:]
				heard++
			case reply.Reason == devices.ReasonUnavailable && reply.Acks == nil:
				refused = append(refused, reply)
			default:
				answers <- reply
				heard++
			}
		}
	})
	close(begin)
	all.Wait()
	close(answers)
	var replies []devices.Reply
	for reply := range answers {
		replies = append(replies, reply)
	}
	return replies
}

// TestOneDeviceAtTwoReplicasAtOnce checks a device that reports to two replicas at the same time: there is one
// grant and one recorded result, whichever replica answers.
func TestOneDeviceAtTwoReplicasAtOnce(t *testing.T) {
	t.Parallel()
	broker := servers.StartMosquitto(t)
	config := serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL(), "DISPATCHER_MQTT_URL="+broker.URL)
	replicas := make([]*instance, 2)
	for n := range replicas {
		replicas[n], _ = startServing(t, config)
		waitForBroker(t, replicas[n])
	}
	m := newMQTTDevice(t, &DevServer{MQTTURL: broker.URL}, "meter")
	replicas[0].callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":60}`)
	delivered, answered := map[devices.Reason]int{}, map[devices.Outcome]int{}
	const rounds = 25
	for round := range rounds {
		replicas[round%2].callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["meter","meter"]}`)
		task := expectOneGrant(t, reportConcurrently(t, replicas, m, `{"id":"ask-%d"}`), delivered)
		if task == nil { // all reports collided; the next report shows the grant
			task = replicas[round%2].sendReport(t, "meter", `{"id":"once more"}`).Task
		}
		result := fmt.Sprintf(`{"id":"tell-%%d","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded","output":{"round":%d}}]}`, task.ID, task.Token, round)
		recorded := 0
		for _, reply := range reportConcurrently(t, replicas, m, result) {
			if len(reply.Acks) != 1 {
				t.Fatalf("%+v, want the result acknowledged", reply)
			}
			answered[reply.Acks[0].Outcome]++
			if reply.Acks[0].Outcome == devices.OutcomeRecorded {
				recorded++
			}
		}
		if recorded != 1 {
			t.Errorf("round %d: recorded %d times", round, recorded)
		}
		// The second task of the round ends, so that the next round starts in the same state as this one.
		if task = replicas[round%2].sendReport(t, "meter", `{"id":"rest"}`).Task; task == nil {
			t.Fatal("the second task was not granted")
		}
		replicas[round%2].sendReport(t, "meter", fmt.Sprintf(`{"id":"rest","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, task.ID, task.Token))
	}
	if len(answered) != 2 || answered[devices.OutcomeDuplicate] == 0 {
		t.Errorf("outcomes %v, want recorded and duplicate", answered)
	}
	if delivered[devices.ReasonGranted] < rounds/2 {
		t.Errorf("reasons %v", delivered)
	}
	t.Logf("reasons %v, outcomes %v", delivered, answered)
}

// expectOneGrant checks that all grants in the replies are the same grant, and returns this grant.
func expectOneGrant(t *testing.T, replies []devices.Reply, reasons map[devices.Reason]int) (granted *devices.Task) {
	t.Helper()
	for _, reply := range replies {
		reasons[reply.Reason]++
		switch {
		case reply.Task == nil && reply.Reason != devices.ReasonBusy && reply.Reason != devices.ReasonUnavailable:
			t.Errorf("%+v: there is work, and a slot", reply)
		case reply.Task != nil && granted != nil && (reply.Task.ID != granted.ID || reply.Task.Token != granted.Token || reply.Task.Slot != granted.Slot):
			t.Errorf("two grants: %+v and %+v", granted, reply.Task)
		case reply.Task != nil:
			granted = reply.Task
		}
	}
	return granted
}

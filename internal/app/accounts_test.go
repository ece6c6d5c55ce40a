package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// provisionedReplicas is a pair of replicas that manage the accounts of devices at one mosquitto.
type provisionedReplicas struct {
	*instance
	other  *instance
	broker *servers.DeployedMosquitto
}

func startProvisioned(t *testing.T, settings ...string) provisionedReplicas {
	t.Helper()
	b := servers.StartMosquittoDynsec(t)
	settings = append(settings, "DISPATCHER_MQTT_URL="+b.DispatcherURL, "DISPATCHER_MQTT_USER="+servers.DispatcherUser,
		"DISPATCHER_MQTT_PASSWORD="+servers.DispatcherPassword, "DISPATCHER_MQTT_PROVISION=dynsec")
	config := serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL(), settings...)
	one, _ := startServing(t, config)
	two, _ := startServing(t, config)
	waitForBroker(t, one)
	waitForBroker(t, two)
	return provisionedReplicas{one, two, b}
}

// tokenIn returns the token that a response shows.
func tokenIn(t *testing.T, content []byte) string {
	t.Helper()
	var made struct{ Token string }
	if err := json.Unmarshal(content, &made); err != nil || made.Token == "" {
		t.Fatalf("no token in %s: %v", content, err)
	}
	return made.Token
}

func (p provisionedReplicas) createDevice(t *testing.T, id string) string {
	t.Helper()
	return tokenIn(t, p.callOperator(t, http.MethodPost, "/v1/devices", fmt.Sprintf(`{"id":%q}`, id)))
}

// brokerDevice is a device with a session at a broker.
type brokerDevice struct {
	paho.Client
	err     error
	id      devices.ID
	replies chan []byte
	lost    chan struct{}
}

func connectDevice(t *testing.T, addr string, id devices.ID, password string) *brokerDevice {
	t.Helper()
	f := &brokerDevice{id: id, replies: make(chan []byte, 10), lost: make(chan struct{})}
	f.Client = paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + addr).SetClientID(string(id)).SetUsername(string(id)).SetPassword(password).
		SetProtocolVersion(4).SetAutoReconnect(false).SetConnectTimeout(patience).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { f.replies <- m.Payload() }).
		SetConnectionLostHandler(func(paho.Client, error) { close(f.lost) }))
	token := f.Connect()
	<-token.Done()
	if f.err = token.Error(); f.err == nil {
		<-f.Subscribe(devices.ReplyTopic(id), 1, nil).Done()
	}
	t.Cleanup(func() { f.Disconnect(0) })
	return f
}

// reportUntilReply sends a report of the device until a reply arrives. Reports that are sent while no dispatcher is
// subscribed are lost.
func (f *brokerDevice) reportUntilReply(t *testing.T) devices.Reply {
	t.Helper()
	var reply devices.Reply
	await.True(t, "an answer", func() bool {
		f.Publish(devices.ReportTopic(f.id), 1, false, `{"id":"x"}`)
		select {
		case content := <-f.replies:
			reply = decodeReply(t, content)
			return true
		case <-f.lost:
			t.Fatal("the session ended")
		case <-time.After(time.Second):
		}
		return false
	})
	return reply
}

func (f *brokerDevice) expectEnd(t *testing.T) {
	t.Helper()
	since := time.Now()
	await.Receive(t, f.lost, "the session goes on")
	t.Logf("the session of %s ended after %s", f.id, time.Since(since))
}

// waitUntilRefused tries to connect until the broker refuses the device. The promised limit is 5 s. This function
// only logs how long it took, because a busy machine does not break the promise.
func (p provisionedReplicas) waitUntilRefused(t *testing.T, id devices.ID, password string) {
	t.Helper()
	since := time.Now()
	defer func() { t.Logf("%s was kept out after %s", id, time.Since(since)) }()
	await.True(t, string(id)+" is kept out", func() bool {
		f := connectDevice(t, p.broker.Addr, id, password)
		defer f.Disconnect(0)
		return f.err != nil
	})
}

func TestAccountsFollowAtMosquitto(t *testing.T) {
	t.Parallel()
	p := startProvisioned(t)
	first := p.createDevice(t, "ar-7")
	f := connectDevice(t, p.broker.Addr, "ar-7", first)
	if f.err != nil {
		t.Fatal(f.err)
	}
	if reply := f.reportUntilReply(t); reply.Reason != devices.ReasonNone {
		t.Errorf("reply %+v", reply)
	}
	second := tokenIn(t, p.other.callOperator(t, http.MethodPost, "/v1/devices/ar-7/token", ""))
	f.expectEnd(t)
	if f = connectDevice(t, p.broker.Addr, "ar-7", first); f.err == nil {
		t.Error("the older token opens a session: the broker has one password")
	}
	if status, body := p.call(t, http.MethodPost, "/v1/devices/ar-7/report", first, `{}`); status != http.StatusOK {
		t.Errorf("the older token over HTTP: %d %s", status, body)
	}
	f = connectDevice(t, p.broker.Addr, "ar-7", second)
	f.reportUntilReply(t)
	p.callOperator(t, http.MethodPost, "/v1/devices/ar-7/block", "")
	f.expectEnd(t)
	p.waitUntilRefused(t, "ar-7", second)
	p.other.callOperator(t, http.MethodPost, "/v1/devices/ar-7/unblock", "")
	await.True(t, "it may come back", func() bool {
		f = connectDevice(t, p.broker.Addr, "ar-7", second)
		return f.err == nil
	})
	f.reportUntilReply(t)
	p.callOperator(t, http.MethodDelete, "/v1/devices/ar-7", "")
	f.expectEnd(t)
	p.waitUntilRefused(t, "ar-7", second)
	third := p.createDevice(t, "ar-7")
	f = connectDevice(t, p.broker.Addr, "ar-7", third)
	f.reportUntilReply(t)
}

func TestAccountsWithoutTheBroker(t *testing.T) {
	t.Parallel()
	p := startProvisioned(t)
	tokens := map[devices.ID]string{}
	for _, id := range []devices.ID{"blocked-down", "deleted-down", "blocked-paused", "deleted-paused"} {
		tokens[id] = p.createDevice(t, string(id))
	}
	refused := func(id string) {
		t.Helper()
		status, body := p.call(t, http.MethodPost, "/v1/devices", p.admin, `{"id":"`+id+`"}`)
		var problem struct{ Code string }
		if err := json.Unmarshal(body, &problem); err != nil || status != http.StatusServiceUnavailable || problem.Code != "broker_unavailable" {
			t.Errorf("created without the broker: %d %s", status, body)
		}
		if status, _ := p.call(t, http.MethodGet, "/v1/devices/"+id, p.admin, ""); status != http.StatusNotFound {
			t.Errorf("%s is half-created: %d", id, status)
		}
	}
	p.broker.Kill()
	p.callOperator(t, http.MethodPost, "/v1/devices/blocked-down/block", "")
	p.callOperator(t, http.MethodDelete, "/v1/devices/deleted-down", "")
	refused("new-down")
	p.broker.Start()
	p.waitUntilRefused(t, "blocked-down", tokens["blocked-down"])
	p.waitUntilRefused(t, "deleted-down", tokens["deleted-down"])
	p.broker.WhilePaused(func() {
		p.callOperator(t, http.MethodPost, "/v1/devices/blocked-paused/block", "")
		p.callOperator(t, http.MethodDelete, "/v1/devices/deleted-paused", "")
		refused("new-paused")
	})
	p.waitUntilRefused(t, "blocked-paused", tokens["blocked-paused"])
	p.waitUntilRefused(t, "deleted-paused", tokens["deleted-paused"])
	for _, id := range []devices.ID{"new-down", "new-paused"} {
		f := connectDevice(t, p.broker.Addr, id, p.createDevice(t, string(id)))
		f.reportUntilReply(t)
	}
}

func TestReplicasProvisionAtOnce(t *testing.T) {
	t.Parallel()
	p := startProvisioned(t)
	const number = 20
	made := make([][]byte, number)
	var wait sync.WaitGroup
	for i := range number {
		for _, replica := range []*instance{p.instance, p.other} { // both replicas create the same device
			wait.Go(func() {
				status, body := replica.call(t, http.MethodPost, "/v1/devices", p.admin, fmt.Sprintf(`{"id":"d-%d"}`, i))
				switch status {
				case http.StatusCreated:
					made[i] = body
				case http.StatusConflict:
				default:
					t.Errorf("%d %s", status, body)
				}
			})
		}
		if i%4 == 3 {
			wait.Wait() // more concurrent requests would exceed their time limit
		}
	}
	wait.Wait()
	for i, body := range made {
		f := connectDevice(t, p.broker.Addr, devices.ID(fmt.Sprint("d-", i)), tokenIn(t, body))
		if f.err != nil {
			t.Errorf("d-%d: the account has not the secret of the one that was created: %v", i, f.err)
		}
		f.Disconnect(0)
	}
}

func TestEnrollmentAtMosquitto(t *testing.T) {
	t.Parallel()
	p := startProvisioned(t, "DISPATCHER_FLEET_TOKEN_MODE=enroll")
	credential := p.sendReport(t, "new", `{}`).Credential
	f := connectDevice(t, p.broker.Addr, "new", credential)
	if f.err != nil {
		t.Fatal(f.err)
	}
	f.reportUntilReply(t)
}

func TestDevEndsSessions(t *testing.T) {
	t.Parallel()
	i, d := startDev(t, t.TempDir())
	waitForBroker(t, i)
	addr := d.MQTTURL[len("mqtt://"):]
	for _, id := range []devices.ID{"blocked", "deleted", "rotated"} {
		secret := tokenIn(t, i.callOperator(t, http.MethodPost, "/v1/devices", fmt.Sprintf(`{"id":%q}`, id)))
		f := connectDevice(t, addr, id, secret)
		if f.err != nil {
			t.Fatal(f.err)
		}
		f.reportUntilReply(t)
		switch id {
		case "blocked":
			i.callOperator(t, http.MethodPost, "/v1/devices/blocked/block", "")
		case "deleted":
			i.callOperator(t, http.MethodDelete, "/v1/devices/deleted", "")
		case "rotated":
			i.callOperator(t, http.MethodPost, "/v1/devices/rotated/token", `{"overlap_ms":60000}`)
			f.reportUntilReply(t) // the session continues, and the older token is still valid
			i.callOperator(t, http.MethodPost, "/v1/devices/rotated/token", `{"overlap_ms":0}`)
		}
		f.expectEnd(t)
		if again := connectDevice(t, addr, id, secret); again.err == nil {
			t.Errorf("%s opened a new session", id)
		}
	}
}

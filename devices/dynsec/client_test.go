package dynsec_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"go.uber.org/goleak"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/dynsec"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

func newClient(t *testing.T, b *servers.DeployedMosquitto) *dynsec.Client {
	t.Helper()
	c, err := dynsec.New(dynsec.Options{URL: b.DispatcherURL, User: servers.DispatcherUser, Password: servers.DispatcherPassword})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// mayConnect reports whether a device can connect to the broker with this password.
func mayConnect(t *testing.T, addr, id, password string) bool {
	t.Helper()
	s := openSession(t, addr, id, id, password)
	defer s.Disconnect(0)
	return s.err == nil
}

// testClient is the connection of a device or of a dispatcher to the broker.
type testClient struct {
	paho.Client
	err      error
	received chan string
	lost     chan struct{}
}

func openSession(t *testing.T, addr, id, user, password string, changes ...func(*paho.ClientOptions)) *testClient {
	t.Helper()
	c := &testClient{received: make(chan string, 1000), lost: make(chan struct{})}
	o := paho.NewClientOptions().AddBroker("tcp://" + addr).SetClientID(id).SetUsername(user).SetPassword(password).
		SetProtocolVersion(4).SetAutoReconnect(false).SetConnectTimeout(patience).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { c.received <- m.Topic() + " " + string(m.Payload()) }).
		SetConnectionLostHandler(func(paho.Client, error) { close(c.lost) })
	for _, change := range changes {
		change(o)
	}
	c.Client = paho.NewClient(o)
	token := c.Connect()
	<-token.Done()
	c.err = token.Error()
	t.Cleanup(func() { c.Disconnect(0) })
	return c
}

func (c *testClient) subscribe(t *testing.T, filter string) byte {
	t.Helper()
	token, _ := c.SubscribeMultiple(map[string]byte{filter: 1}, nil).(*paho.SubscribeToken)
	if !token.WaitTimeout(patience) {
		t.Fatalf("no answer to SUBSCRIBE %s", filter)
	}
	for _, code := range token.Result() {
		return code
	}
	return 0x80 // the connection ended
}

func (c *testClient) publish(t *testing.T, topic, body string) {
	t.Helper()
	if token := c.Publish(topic, 1, false, body); !token.WaitTimeout(patience) {
		t.Fatalf("no answer to PUBLISH %s", topic)
	}
}

func (c *testClient) nextMessage(t *testing.T) string {
	t.Helper()
	return await.Receive(t, c.received, "nothing was received")
}

func (c *testClient) expectEnd(t *testing.T) {
	t.Helper()
	await.Receive(t, c.lost, "the session goes on")
}

func TestAccountFollowsItsDevice(t *testing.T) {
	t.Parallel()
	b := servers.StartMosquittoDynsec(t)
	c := newClient(t, b)
	if mayConnect(t, b.Addr, "a", "1") {
		t.Fatal("a device without an account got in")
	}
	for range 2 { // A repeated call changes nothing.
		must.Succeed(t, c.Set(t.Context(), devices.Account{Device: "a", Password: "1", Enabled: true}))
	}
	if !mayConnect(t, b.Addr, "a", "1") || mayConnect(t, b.Addr, "a", "2") || mayConnect(t, b.Addr, "a", "") {
		t.Fatal("the account is not the one that was set")
	}
	open := openSession(t, b.Addr, "a", "a", "1")
	must.Succeed(t, c.Set(t.Context(), devices.Account{Device: "a", Password: "2", Enabled: true}))
	open.expectEnd(t)
	if mayConnect(t, b.Addr, "a", "1") || !mayConnect(t, b.Addr, "a", "2") {
		t.Error("the new secret does not replace the old one")
	}
	open = openSession(t, b.Addr, "a", "a", "2")
	for range 2 {
		must.Succeed(t, c.Disable(t.Context(), "a"))
	}
	open.expectEnd(t)
	must.Succeed(t, c.Set(t.Context(), devices.Account{Device: "a", Password: "3"}))
	if mayConnect(t, b.Addr, "a", "2") || mayConnect(t, b.Addr, "a", "3") {
		t.Error("a disabled account got in")
	}
	for range 2 {
		must.Succeed(t, c.Enable(t.Context(), "a"))
	}
	open = openSession(t, b.Addr, "a", "a", "3")
	must.Succeed(t, open.err)
	for range 2 {
		must.Succeed(t, c.Delete(t.Context(), "a"))
	}
	open.expectEnd(t)
	must.Succeed(t, c.Disable(t.Context(), "a"))
	must.Succeed(t, c.Enable(t.Context(), "a"))
	if mayConnect(t, b.Addr, "a", "3") {
		t.Error("a deleted account got in")
	}
	must.Succeed(t, c.Set(t.Context(), devices.Account{Device: "a", Password: "4"}))
	if mayConnect(t, b.Addr, "a", "4") {
		t.Error("an account made disabled got in")
	}
}

func TestAccountsOutliveTheBroker(t *testing.T) {
	t.Parallel()
	b := servers.StartMosquittoDynsec(t)
	c := newClient(t, b)
	must.Succeed(t, c.Set(t.Context(), devices.Account{Device: "a", Password: "1", Enabled: true}))
	b.Kill()
	if err := c.Set(t.Context(), devices.Account{Device: "b", Password: "1", Enabled: true}); err == nil {
		t.Fatal("set without a broker")
	}
	b.Start()
	must.Succeed(t, c.Set(t.Context(), devices.Account{Device: "b", Password: "1", Enabled: true}))
	if !mayConnect(t, b.Addr, "a", "1") || !mayConnect(t, b.Addr, "b", "1") {
		t.Error("an account is gone")
	}
	must.Succeed(t, b.CheckHealth(t, servers.DispatcherPassword))
	if b.CheckHealth(t, "another") == nil {
		t.Error("healthy with a wrong password")
	}
}

func TestReplicasSetAccountsAtOnce(t *testing.T) {
	t.Parallel()
	b := servers.StartMosquittoDynsec(t)
	one, two := newClient(t, b), newClient(t, b)
	// The ledger allows only one account change at a time, and each change may come from any replica.
	var turn sync.Mutex
	var wait sync.WaitGroup
	for i := range 20 {
		c := []*dynsec.Client{one, two}[i%2]
		wait.Go(func() {
			turn.Lock()
			defer turn.Unlock()
			if err := c.Set(t.Context(), devices.Account{Device: devices.ID(fmt.Sprint("d-", i)), Password: "1", Enabled: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for i := range 20 {
		if !mayConnect(t, b.Addr, fmt.Sprint("d-", i), "1") {
			t.Errorf("d-%d has no account", i)
		}
	}
}

// TestRightsAreChangedOnce checks the rights of the dispatchers at the broker: they are set only once, because a
// second change would end the sessions of the dispatchers.
func TestRightsAreChangedOnce(t *testing.T) {
	t.Parallel()
	b := servers.StartMosquittoDynsec(t)
	must.Succeed(t, newClient(t, b).Check(t.Context()))
	inside := connectDispatcher(t, b)
	for range 2 {
		must.Succeed(t, newClient(t, b).Check(t.Context()))
	}
	must.Succeed(t, newClient(t, b).Set(t.Context(), devices.Account{Device: "a", Password: "1", Enabled: true}))
	if !inside.IsConnectionOpen() {
		t.Error("the session of a dispatcher ended")
	}
}

func TestWrongOptionsAndAccounts(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]dynsec.Options{
		"no user":       {URL: "mqtt://b", Password: "p"},
		"no password":   {URL: "mqtt://b", User: "_d"},
		"a device's id": {URL: "mqtt://b", User: "dispatcher", Password: "p"},
		"no broker":     {User: "_d", Password: "p"},
	} {
		if _, err := dynsec.New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	b := servers.StartMosquittoDynsec(t)
	must.Succeed(t, newClient(t, b).Set(t.Context(), devices.Account{Device: "a", Password: "1", Enabled: true}))
	wrong, err := dynsec.New(dynsec.Options{URL: b.DispatcherURL, User: servers.DispatcherUser, Password: "wrong"})
	must.Succeed(t, err)
	if err := wrong.Check(t.Context()); err == nil || strings.Contains(err.Error(), "wrong") {
		t.Errorf("with a wrong password: %v", err)
	}
	plain := servers.StartMosquitto(t) // This broker does not have the plugin.
	c, err := dynsec.New(dynsec.Options{URL: plain.URL, User: "_d", Password: "p"})
	must.Succeed(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := c.Check(ctx); err == nil || !strings.Contains(err.Error(), "dynamic-security") {
		t.Errorf("without the plugin: %v", err)
	}
}

// connectDispatcher connects a dispatcher and subscribes it to the reports.
func connectDispatcher(t *testing.T, b *servers.DeployedMosquitto) *testClient {
	t.Helper()
	c := openSession(t, strings.TrimPrefix(b.DispatcherURL, "mqtt://"), "dispatcher-1", servers.DispatcherUser, servers.DispatcherPassword)
	must.Succeed(t, c.err)
	if code := c.subscribe(t, devices.SharedReportFilter(devices.DefaultGroup)); code != 1 {
		t.Fatalf("the dispatcher's subscription: %#x", code)
	}
	return c
}

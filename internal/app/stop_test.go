package app

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// startReportInFlight starts a replica and sends a report to it whose claim the ledger does not answer. httpStatus
// receives the status of the response, or 0 if there is no response.
func startReportInFlight(t *testing.T) (i *instance, a *App, ledger *servers.Proxy, httpStatus <-chan int) {
	t.Helper()
	server := sharedPostgres.Server(t)
	ledger = servers.NewProxy(t, server.Addr())
	underway := make(chan struct{})
	var once sync.Once
	ledger.HoldRepliesAfter("slow-device") // holding all replies would make the replica find that Postgres does not answer
	ledger.OnRequest(func(b []byte) {
		if bytes.Contains(b, []byte("slow-device")) {
			once.Do(func() { close(underway) })
		}
	})
	dsn := strings.Replace(sharedPostgres.NewLedger(t), server.Addr(), ledger.Addr, 1)
	i, a = startServing(t, serveConfig(t, dsn, servers.StartRedis(t).URL()))
	t.Cleanup(ledger.ReleaseReplies)
	i.sendReport(t, "fast-device", `{"id":"1"}`)
	status := make(chan int, 1)
	go func() {
		request, _ := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, i.url+"/v1/devices/slow-device/report", strings.NewReader(`{}`))
		request.Header.Set("Authorization", "Bearer "+fleetToken)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			status <- 0
			return
		}
		response.Body.Close()
		status <- response.StatusCode
	}()
	await.Receive(t, underway, "the report never came to Postgres")
	return i, a, ledger, status
}

// TestEndAnswersWhatIsInFlight checks a report that is in flight when the process begins to stop: it is still
// answered.
func TestEndAnswersWhatIsInFlight(t *testing.T) {
	t.Parallel()
	i, a, ledger, answered := startReportInFlight(t)
	ended := make(chan error, 1)
	go func() { ended <- i.stop() }()
	waitUntilClosed(t, a)
	select {
	case err := <-ended:
		t.Fatalf("ended with a report in flight: %v", err)
	case status := <-answered:
		t.Fatalf("answered %d while the ledger was held", status)
	default:
	}
	ledger.ReleaseReplies()
	if status := <-answered; status != http.StatusOK {
		t.Errorf("the report in flight: %d, want 200", status)
	}
	if err := <-ended; err != nil {
		t.Errorf("end: %v", err)
	}
}

// TestEndHasALimit checks a report that hangs: it does not prevent the process from stopping. The error of the stop
// names what had not ended.
func TestEndHasALimit(t *testing.T) {
	t.Parallel()
	i, _, _, answered := startReportInFlight(t)
	begin := time.Now()
	err := i.stop()
	t.Logf("ended after %s: %v", time.Since(begin).Round(time.Millisecond), err)
	if err == nil || !strings.Contains(err.Error(), "1 unanswered requests") {
		t.Errorf("%v, want it to say what was left", err)
	}
	<-answered
}

// TestEndInOrder checks the order in which a replica stops. First it reports that it is not ready, and closes its
// listener. Then the requests in flight end, over both transports, and then the passes. The slots stay held, and the
// device continues at another replica.
func TestEndInOrder(t *testing.T) {
	t.Parallel()
	broker, redis, dsn := servers.StartMosquitto(t), servers.StartRedis(t), sharedPostgres.NewLedger(t)
	ending, a := startServing(t, serveConfig(t, dsn+"&lock_timeout=60000", redis.URL(), "DISPATCHER_MQTT_URL="+broker.URL))
	waitForBroker(t, ending)
	other, _ := startServing(t, serveConfig(t, dsn, redis.URL()))
	other.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":3}`)
	other.callOperator(t, http.MethodPut, "/v1/pools/q", `{"capacity":1}`)
	other.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["runs","by-mqtt"]}`)
	other.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"q","kind":"k","devices":["by-http"]}`)
	runs := ending.sendReport(t, "runs", `{"id":"1"}`)
	if runs.Task == nil {
		t.Fatalf("%+v, want a grant", runs)
	}
	meter := newMQTTDevice(t, &DevServer{MQTTURL: broker.URL}, "by-mqtt")

	claims := lockClaims(t, dsn, "p", "q")
	replies := make(chan devices.Reply, 2)
	go func() { replies <- meter.sendReport(t, `{"id":"m"}`) }()
	await.True(t, "a claim in flight", func() bool { return claims.waitingClaims(t) == 1 })
	go func() {
		_, body := ending.call(t, http.MethodPost, "/v1/devices/by-http/report", fleetToken, `{"id":"h"}`)
		replies <- decodeReply(t, body)
	}()
	await.True(t, "two claims in flight", func() bool { return claims.waitingClaims(t) == 2 })
	ended := make(chan error, 1)
	go func() { ended <- ending.stop() }()
	waitUntilClosed(t, a)
	select {
	case <-a.passes.ctx.Done():
		t.Error("the passes were ended with reports in flight")
	case err := <-ended:
		t.Errorf("ended with reports in flight: %v", err)
	case reply := <-replies:
		t.Errorf("answered before its claim: %+v", reply)
	default:
	}
	claims.release(t)
	tokens := append(grantTokens(t, replies, 2), runs.Task.Token)
	if err := <-ended; err != nil {
		t.Errorf("end: %v", err)
	}
	slots := slices.Concat(other.callOperator(t, http.MethodGet, "/v1/pools/p/slots", ""), other.callOperator(t, http.MethodGet, "/v1/pools/q/slots", ""))
	for _, token := range tokens { // all slots are still held, and all grants were delivered
		if !bytes.Contains(slots, fmt.Appendf(nil, `"token":%d,`, token)) {
			t.Errorf("%s: token %d is missing", slots, token)
		}
	}
	reply := other.sendReport(t, "runs", fmt.Sprintf(`{"id":"2","running":[{"task":%d,"token":%d}]}`, runs.Task.ID, runs.Task.Token))
	if len(reply.Renewed) != 1 {
		t.Errorf("%+v: want the run renewed at the other replica", reply)
	}
}

// grantTokens waits for n replies with a grant, and returns their fencing tokens.
func grantTokens(t *testing.T, replies <-chan devices.Reply, n int) (tokens []int64) {
	t.Helper()
	for range n {
		reply := await.Receive(t, replies, "no answer to what was in flight")
		if reply.Task == nil {
			t.Fatalf("in flight: %+v, want a grant", reply)
		}
		tokens = append(tokens, reply.Task.Token)
	}
	return tokens
}

// claimLocks is a database session that holds the locks of pools exclusively, as a change of the capacity does.
type claimLocks struct{ conn *sql.Conn }

func lockClaims(t *testing.T, dsn string, pools ...string) *claimLocks {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(t.Context())
	must.Succeed(t, err)
	for _, pool := range pools {
		_, err := conn.ExecContext(t.Context(), `SELECT pg_advisory_lock(20060, hashtext($1))`, pool)
		must.Succeed(t, err)
	}
	return &claimLocks{conn}
}

// waitingClaims returns how many claims wait for this lock.
func (h *claimLocks) waitingClaims(t *testing.T) (n int) {
	t.Helper()
	err := h.conn.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
	must.Succeed(t, err)
	return n
}

func (h *claimLocks) release(t *testing.T) {
	t.Helper()
	_, err := h.conn.ExecContext(t.Context(), `SELECT pg_advisory_unlock_all()`)
	must.Succeed(t, err)
	_ = h.conn.Close()
}

// waitUntilClosed waits until no client can connect to the app any more.
func waitUntilClosed(t *testing.T, a *App) {
	t.Helper()
	await.True(t, "the listener closed", func() bool {
		conn, err := net.Dial("tcp", a.Addr())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
}

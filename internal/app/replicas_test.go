package app

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestAPoolChangeIsLiveWithoutItsNotification checks a change of a pool by a replica that cannot reach Redis: all
// replicas use the change within 1 s.
func TestAPoolChangeIsLiveWithoutItsNotification(t *testing.T) {
	t.Parallel()
	dsn, redis := sharedPostgres.NewLedger(t), servers.StartRedis(t)
	link := servers.NewProxy(t, redis.Addr)
	const slow = "DISPATCHER_RECONCILE_INTERVAL=5m" // reconciliation runs too rarely to be the cause of the repair
	cutOff, _ := startServing(t, serveConfig(t, dsn, "redis://"+link.Addr, slow))
	other, _ := startServing(t, serveConfig(t, dsn, redis.URL(), slow))
	other.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1}`)
	other.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["a","b","c","d"]}`)
	if reply := other.sendReport(t, "a", `{"id":"1"}`); reply.Reason != devices.ReasonGranted {
		t.Fatalf("%+v, want a grant", reply)
	}
	link.Cut()
	for n, change := range []struct {
		settings string
		device   string
		want     devices.Reason
	}{
		{`{"capacity":2}`, "b", devices.ReasonGranted},
		{`{"capacity":4,"paused":true}`, "c", devices.ReasonPaused},
		{`{"capacity":4}`, "c", devices.ReasonGranted},
		{`{"capacity":0}`, "d", devices.ReasonFull},
		{`{"capacity":4,"lease_ms":600000}`, "d", devices.ReasonGranted},
	} {
		cutOff.callOperator(t, http.MethodPut, "/v1/pools/p", change.settings)
		begin := time.Now()
		await.True(t, string(change.want), func() bool {
			status, body := other.call(t, http.MethodPost, "/v1/devices/"+change.device+"/report", other.fleet, fmt.Sprintf(`{"id":"%d"}`, n))
			if status != http.StatusOK {
				t.Fatalf("report: %d %s", status, body)
			}
			reply := decodeReply(t, body)
			if reply.Task != nil && strings.Contains(change.settings, "600000") && reply.Task.LeaseMS <= 300_000 {
				t.Errorf("lease of %d ms, want the new one", reply.Task.LeaseMS)
			}
			return reply.Reason == change.want
		})
		t.Logf("%s: live after %s", change.settings, time.Since(begin).Round(time.Millisecond))
	}
}

// alterLedger executes a statement directly in the database of the ledger, without the dispatcher.
func alterLedger(t *testing.T, dsn, statement string) {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	must.Succeed(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), statement)
	must.Succeed(t, err)
}

// TestRedisThatComesBackIsReconciledAtOnce checks a Redis that restarts without its data. All pools must be reconciled
// at once, before the next run of the pass reconcile, and before a report finds its pool unknown.
func TestRedisThatComesBackIsReconciledAtOnce(t *testing.T) {
	t.Parallel()
	redis := servers.StartRedis(t)
	dsn := sharedPostgres.NewLedger(t)
	i, a := startServing(t, serveConfig(t, dsn, redis.URL(), "DISPATCHER_RECONCILE_INTERVAL=5m"))
	for _, pool := range []string{"p", "q"} {
		i.callOperator(t, http.MethodPut, "/v1/pools/"+pool, `{"capacity":1}`)
	}
	alterLedger(t, dsn, `UPDATE pools SET updated_at = updated_at - interval '1 minute'`) // so that the change of pool p is not recent, and is not sent to Redis for this reason
	i.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["a"]}`)
	if reply := i.sendReport(t, "a", `{"id":"1"}`); reply.Task == nil {
		t.Fatalf("%+v, want a grant", reply)
	}
	redis.Kill()
	// Each change of pool q makes the replica call Redis. The test changes the pool until the replica notices that it
	// cannot reach Redis.
	await.True(t, "Redis missed", func() bool {
		i.callOperator(t, http.MethodPut, "/v1/pools/q", fmt.Sprintf(`{"capacity":%d}`, time.Now().UnixNano()%1000))
		return a.semaphore.Outages() > 0
	})
	redis.Start()
	begin := time.Now()
	await.True(t, "both pools known", func() bool {
		p, err := a.semaphore.Snapshot(t.Context(), "p")
		if err != nil || !p.PoolKnown {
			return false
		}
		q, err := a.semaphore.Snapshot(t.Context(), "q")
		return err == nil && q.PoolKnown && len(p.Leases) == 1
	})
	t.Logf("reconciled %s after Redis was back", time.Since(begin).Round(time.Millisecond))
}

// TestBlackHoledRedisDoesNotHoldReportsUp checks a Redis that accepts calls and never answers. All reports together
// wait once, and not once per report. Results are recorded and acknowledged, and nothing is granted.
func TestBlackHoledRedisDoesNotHoldReportsUp(t *testing.T) {
	t.Parallel()
	redis := servers.StartRedis(t)
	link := servers.NewProxy(t, redis.Addr)
	i, _ := startServing(t, serveConfig(t, sharedPostgres.NewLedger(t), "redis://"+link.Addr))
	const fleet = 30
	names := make([]string, fleet)
	for n := range names {
		names[n] = fmt.Sprintf("d%d", n)
	}
	i.callOperator(t, http.MethodPut, "/v1/pools/p", fmt.Sprintf(`{"capacity":%d}`, fleet+1)) // the slots of the ended grants are freed only 10 s later
	queued := `{"pool":"p","kind":"k","devices":["` + strings.Join(names, `","`) + `"]}`
	i.callOperator(t, http.MethodPost, "/v1/batches", queued)
	i.callOperator(t, http.MethodPost, "/v1/batches", queued)
	results := make([]string, fleet)
	for n, name := range names {
		reply := i.sendReport(t, name, `{"id":"1"}`)
		if reply.Task == nil {
			t.Fatalf("%+v, want a grant", reply)
		}
		results[n] = fmt.Sprintf(`{"id":"2","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, reply.Task.ID, reply.Task.Token)
	}
	link.HoldReplies()
	begin := time.Now()
	for n, name := range names {
		_, body := i.call(t, http.MethodPost, "/v1/devices/"+name+"/report", i.fleet, results[n])
		reply := decodeReply(t, body)
		if len(reply.Acks) != 1 || reply.Acks[0].Outcome != devices.OutcomeRecorded || reply.Reason != devices.ReasonUnavailable {
			t.Fatalf("%+v, want the result recorded and nothing granted", reply)
		}
	}
	// Without the breaker, each report would wait 3 s for its release and its acquire. With the breaker, one report
	// waits. After that, every half second one report waits for half a second.
	took := time.Since(begin)
	t.Logf("%d reports took %s", fleet, took.Round(time.Millisecond))
	if took > fleet*time.Second {
		t.Error("each report waited for Redis")
	}
	link.ReleaseReplies()
	if reply := i.sendReport(t, "d0", `{"id":"3"}`); reply.Reason != devices.ReasonGranted {
		t.Errorf("%+v, want a grant again", reply)
	}
}

// TestRecentDevicesOfAllReplicas checks the list of devices that reported recently: it has the devices of all
// replicas, newest first.
func TestRecentDevicesOfAllReplicas(t *testing.T) {
	t.Parallel()
	dsn, redis := sharedPostgres.NewLedger(t), servers.StartRedis(t)
	one, _ := startServing(t, serveConfig(t, dsn, redis.URL()))
	other, _ := startServing(t, serveConfig(t, dsn, redis.URL()))
	one.sendReport(t, "a", `{"id":"1"}`)
	other.sendReport(t, "b", `{"id":"1"}`)
	one.sendReport(t, "c", `{"id":"1"}`)
	other.sendReport(t, "a", `{"id":"2"}`)
	for _, i := range []*instance{one, other} {
		await.True(t, "the list", func() bool {
			status, body := i.call(t, http.MethodGet, "/v1/devices?recent=10", i.admin, "")
			var list struct{ Devices []struct{ ID string } }
			if err := json.Unmarshal(body, &list); status != http.StatusOK || err != nil {
				t.Fatalf("%d: %s", status, body)
			}
			return fmt.Sprint(list.Devices) == "[{a} {c} {b}]"
		})
	}
}

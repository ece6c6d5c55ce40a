package app

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// restoredLedger is a ledger that was restored from a backup. After the backup was made, devices got grants for all
// slots of the pool. These devices still work, but the restored ledger does not know their grants.
type restoredLedger struct {
	first, second  *instance // first may have been started with --after-restore
	app            *App      // the app of first
	dsn            string
	unknownTasks   []devices.Task // tasks of the devices "a" and "b" that the restored ledger does not know
	assignedTokens []int64        // fencing tokens that were assigned so far
}

const restoredSlots = 2

func startRestored(t *testing.T, afterRestore bool) *restoredLedger {
	t.Helper()
	redis, dsn := servers.StartRedis(t), sharedPostgres.NewLedger(t)
	i, _ := startServing(t, serveConfig(t, dsn, redis.URL()))
	i.callOperator(t, http.MethodPut, "/v1/pools/p", fmt.Sprintf(`{"capacity":%d}`, restoredSlots))
	i.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["old","a","b","c","d"]}`)
	old := i.sendReport(t, "old", `{"id":"1"}`).Task
	r := &restoredLedger{dsn: stopAndCopy(t, dsn, i), assignedTokens: []int64{old.Token}}

	// After the backup was made, the old grant ends and two new grants are made.
	i, _ = startServing(t, serveConfig(t, dsn, redis.URL()))
	i.callOperator(t, http.MethodPut, "/v1/pools/p", fmt.Sprintf(`{"capacity":%d,"lease_ms":200000}`, restoredSlots))
	i.sendReport(t, "old", fmt.Sprintf(`{"id":"2","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, old.ID, old.Token))
	for _, device := range []string{"a", "b"} {
		task := i.sendReport(t, device, `{"id":"1"}`).Task
		r.unknownTasks, r.assignedTokens = append(r.unknownTasks, *task), append(r.assignedTokens, task.Token)
	}
	must.Succeed(t, i.stop())
	config := serveConfig(t, r.dsn, redis.URL())
	config.AfterRestore = afterRestore
	r.first, r.app = startServing(t, config)
	r.second, _ = startServing(t, serveConfig(t, r.dsn, redis.URL()))
	return r
}

// reportAll lets each device that has no known grant report once, to one of the replicas.
func (r *restoredLedger) reportAll(t *testing.T) map[string]devices.Reply {
	t.Helper()
	replies := make(map[string]devices.Reply)
	for device, at := range map[string]*instance{"old": r.first, "c": r.second, "d": r.first} {
		_, body := at.call(t, http.MethodPost, "/v1/devices/"+device+"/report", fleetToken, `{"id":"3"}`)
		replies[device] = decodeReply(t, body)
	}
	return replies
}

// TestAfterARestoreNobodyGetsInBesideWhoIsInside checks a restored ledger with the option --after-restore. While
// devices hold grants that the ledger does not know, no replica grants anything. No fencing token is assigned
// twice.
func TestAfterARestoreNobodyGetsInBesideWhoIsInside(t *testing.T) {
	t.Parallel()
	r := startRestored(t, true)
	for device, reply := range r.reportAll(t) {
		if reply.Task != nil || reply.Reason != devices.ReasonUnavailable || reply.ReportAfterMS < 30_000 {
			t.Errorf("%s: %+v, want unavailable and a time", device, reply)
		}
	}
	status, body := r.first.call(t, http.MethodPost, "/v1/devices/a/report", fleetToken,
		fmt.Sprintf(`{"id":"3","running":[{"task":%d,"token":%d}]}`, r.unknownTasks[0].ID, r.unknownTasks[0].Token))
	if reply := decodeReply(t, body); status != http.StatusOK || len(reply.Cancel) != 1 || reply.Task != nil {
		t.Errorf("%d %+v: want it told to stop", status, reply)
	}
	alterLedger(t, r.dsn, `UPDATE pools SET stands_until = clock_timestamp()`)
	alterLedger(t, r.dsn, `DELETE FROM grants`)
	for _, device := range []string{"c", "d"} {
		await.True(t, "a grant", func() bool {
			task := r.second.sendReport(t, device, `{"id":"4"}`).Task
			if task != nil && (slices.Contains(r.assignedTokens, task.Token) || task.Token < 1_000_000_000) {
				t.Errorf("%s: token %d, want one that was never given", device, task.Token)
			}
			return task != nil
		})
	}
	// Redis has a later version of the pool than the backup. A change of the pool must reach Redis nevertheless.
	r.first.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":7}`)
	await.True(t, "the new capacity in Redis", func() bool {
		snapshot, err := r.app.semaphore.Snapshot(t.Context(), "p")
		return err == nil && snapshot.Capacity == 7
	})
}

// TestARestoreThatNobodyIsToldOfLetsTooManyIn shows why the option --after-restore is needed: without it, there are
// more holders than the pool has slots.
func TestARestoreThatNobodyIsToldOfLetsTooManyIn(t *testing.T) {
	t.Parallel()
	r := startRestored(t, false)
	inside := len(r.unknownTasks)
	for _, reply := range r.reportAll(t) {
		if reply.Task != nil {
			inside++
		}
	}
	if inside <= restoredSlots {
		t.Errorf("%d inside of %d: the flag is needed for nothing", inside, restoredSlots)
	}
}

// stopAndCopy stops a replica. It returns the DSN of a copy of the replica's database.
func stopAndCopy(t *testing.T, dsn string, i *instance) (copyDSN string) {
	t.Helper()
	must.Succeed(t, i.stop())
	copyDSN = sharedPostgres.NewDatabase(t)
	from, to := databaseName(t, dsn), databaseName(t, copyDSN)
	db, err := sql.Open("postgres", strings.Replace(dsn, "/"+from, "/postgres", 1))
	must.Succeed(t, err)
	defer db.Close()
	for _, statement := range []string{"DROP DATABASE " + to, "CREATE DATABASE " + to + " TEMPLATE " + from} {
		_, err := db.ExecContext(t.Context(), statement)
		must.Succeed(t, err)
	}
	return copyDSN
}

func databaseName(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	must.Succeed(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// TestAfterARestoreEachPoolWaitsForItsOwnLeases checks two pools after a restore of the ledger. In the first pool,
// whose own lease is a minute, a caller was granted a lease of 24 hours after the backup was made: this pool grants
// nothing for 24 hours. The other pool grants again after five minutes.
func TestAfterARestoreEachPoolWaitsForItsOwnLeases(t *testing.T) {
	t.Parallel()
	redis, dsn := servers.StartRedis(t), sharedPostgres.NewLedger(t)
	i, _ := startServing(t, serveConfig(t, dsn, redis.URL()))
	for _, pool := range []string{"ci-runners", "other"} {
		i.callOperator(t, http.MethodPut, "/v1/pools/"+pool, `{"capacity":1,"lease_ms":60000}`)
		i.callOperator(t, http.MethodPost, "/v1/batches", fmt.Sprintf(`{"pool":%q,"kind":"k","devices":["of-%s"]}`, pool, pool))
	}
	var token struct{ Token string }
	must.Succeed(t, json.Unmarshal(i.callOperator(t, http.MethodPost, "/v1/tokens", `{"name":"ci","role":"caller","pools":["ci-*"]}`), &token))
	backup := stopAndCopy(t, dsn, i)

	i, _ = startServing(t, serveConfig(t, dsn, redis.URL()))
	i.waitForLease(t, "ci-runners", token.Token, `{"holder":"job","lease_ms":86400000}`)
	must.Succeed(t, i.stop())
	config := serveConfig(t, backup, redis.URL())
	config.AfterRestore = true
	i, _ = startServing(t, config)
	for pool, want := range map[string]time.Duration{"ci-runners": 24 * time.Hour, "other": 5 * time.Minute} {
		_, body := i.call(t, http.MethodPost, "/v1/devices/of-"+pool+"/report", fleetToken, `{"id":"1"}`)
		if reply := decodeReply(t, body); reply.Task != nil || reply.Reason != devices.ReasonUnavailable {
			t.Errorf("%s: %+v, want unavailable", pool, reply)
		}
		if left := i.standstillLeft(t, "of-"+pool); left > want || left < want-2*time.Minute {
			t.Errorf("pool %s stands still for %s, want %s", pool, left, want)
		}
	}
}

// waitForLease requests a lease for a caller until it is granted.
func (i *instance) waitForLease(t *testing.T, pool, token, body string) {
	t.Helper()
	await.True(t, "a lease", func() bool {
		status, _ := i.call(t, http.MethodPost, "/v1/pools/"+pool+"/leases", token, body)
		return status == http.StatusCreated
	})
}

// standstillLeft returns the time for which nothing will be granted to the only task of the device, according to `why`.
func (i *instance) standstillLeft(t *testing.T, device string) time.Duration {
	t.Helper()
	var list struct{ Tasks []struct{ ID int64 } }
	if err := json.Unmarshal(i.callOperator(t, http.MethodGet, "/v1/tasks?device="+device, ""), &list); err != nil || len(list.Tasks) != 1 {
		t.Fatalf("tasks of %s: %+v, %v", device, list, err)
	}
	var why struct {
		Reasons []struct {
			Code  string
			Until time.Time
		}
	}
	text := i.callOperator(t, http.MethodGet, fmt.Sprintf("/v1/tasks/%d/why", list.Tasks[0].ID), "")
	if err := json.Unmarshal(text, &why); err != nil || len(why.Reasons) == 0 || why.Reasons[0].Code != "standstill" {
		t.Fatalf("why: %s, %v", text, err)
	}
	return time.Until(why.Reasons[0].Until)
}

package app

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/testservers"
)

// The ledger goes back to a backup while devices hold grants that it does not
// know: with --after-restore nobody else gets in, at any replica, and no token
// comes twice. Without it there is one too many, which is what the flag is for.
func TestAfterRestore(t *testing.T) {
	t.Parallel()
	for _, flag := range []bool{true, false} {
		t.Run(fmt.Sprintf("flag=%t", flag), func(t *testing.T) {
			t.Parallel()
			const capacity = 2
			redis, dsn := testservers.Redis(t), shared.NewLedger(t)
			i, _ := startServing(t, serveConfig(t, dsn, redis.URL()))
			i.operate(t, http.MethodPut, "/v1/pools/p", fmt.Sprintf(`{"capacity":%d}`, capacity))
			i.operate(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["old","a","b","c","d"]}`)
			old := i.report(t, "old", `{"id":"1"}`)
			backup := backUp(t, dsn, i)

			// After the backup: the old grant ends, and two others are made.
			i, _ = startServing(t, serveConfig(t, dsn, redis.URL()))
			i.operate(t, http.MethodPut, "/v1/pools/p", fmt.Sprintf(`{"capacity":%d,"lease_ms":200000}`, capacity))
			i.report(t, "old", fmt.Sprintf(`{"id":"2","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, old.Task.ID, old.Task.Token))
			inside := map[string]*devices.Task{"a": i.report(t, "a", `{"id":"1"}`).Task, "b": i.report(t, "b", `{"id":"1"}`).Task}
			tokens := map[int64]bool{old.Task.Token: true}
			for _, task := range inside {
				tokens[task.Token] = true
			}
			if err := i.stop(); err != nil {
				t.Fatal(err)
			}

			config := serveConfig(t, backup, redis.URL())
			config.AfterRestore = flag
			first, a := startServing(t, config)
			second, _ := startServing(t, serveConfig(t, backup, redis.URL())) // without the flag, or after it
			for n, device := range []string{"old", "c", "d", "a"} {
				if device == "a" && flag { // it runs what the ledger does not know
					status, body := first.call(t, http.MethodPost, "/v1/devices/a/report", fleetToken,
						fmt.Sprintf(`{"id":"3","running":[{"task":%d,"token":%d}]}`, inside["a"].ID, inside["a"].Token))
					if reply := decodeReply(t, body); status != http.StatusOK || len(reply.Cancel) != 1 || reply.Task != nil {
						t.Errorf("%d %+v: want it told to stop", status, reply)
					}
					continue
				}
				if device == "a" {
					continue
				}
				at := []*instance{first, second}[n%2]
				_, body := at.call(t, http.MethodPost, "/v1/devices/"+device+"/report", fleetToken, `{"id":"3"}`)
				reply := decodeReply(t, body)
				if flag && (reply.Reason != devices.ReasonUnavailable || reply.ReportAfterMS < 30_000) {
					t.Errorf("%s: %+v, want unavailable and a time", device, reply)
				}
				if reply.Task != nil {
					inside[device] = reply.Task
				}
			}
			if got := len(inside); flag == (got > capacity) {
				t.Errorf("%d inside of %d: %v", got, capacity, inside)
			}
			if !flag {
				return
			}
			alter(t, backup, `UPDATE restores SET until = clock_timestamp()`)
			alter(t, backup, `DELETE FROM grants`)
			for _, device := range []string{"c", "d"} {
				eventually(t, "a grant", func() bool {
					task := second.report(t, device, `{"id":"4"}`).Task
					if task != nil && (tokens[task.Token] || task.Token < 1_000_000_000) {
						t.Errorf("%s: token %d, want one that was never given", device, task.Token)
					}
					return task != nil
				})
			}
			// Redis knew a later version of the pool than the backup did.
			first.operate(t, http.MethodPut, "/v1/pools/p", `{"capacity":7}`)
			eventually(t, "the new capacity in Redis", func() bool {
				snapshot, err := a.semaphore.Snapshot(t.Context(), "p")
				return err == nil && snapshot.Capacity == 7
			})
		})
	}
}

// backUp stops a replica and returns a copy of its database as it is now.
func backUp(t *testing.T, dsn string, i *instance) (backup string) {
	t.Helper()
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	backup = shared.NewDatabase(t)
	from, to := databaseOf(t, dsn), databaseOf(t, backup)
	db, err := sql.Open("postgres", strings.Replace(dsn, "/"+from, "/postgres", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{"DROP DATABASE " + to, "CREATE DATABASE " + to + " TEMPLATE " + from} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return backup
}

func databaseOf(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

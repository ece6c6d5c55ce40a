package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const retryKey = "spring-survey"

// manyTasks returns the maximum number of tasks of a request, or a tenth of it with -short.
func manyTasks() int64 {
	if testing.Short() {
		return 10_000
	}
	return 100_000
}

// answerWatch detects, separately for each connection to Postgres, the COMMIT after the stored answer for an idempotency key.
type answerWatch struct {
	once    sync.Once
	before  func()        // called just before this COMMIT is forwarded
	seen    chan struct{} // closed after before has returned
	forward chan struct{} // the COMMIT is forwarded when it is closed
	release func()        // closes forward
}

func newAnswerWatch(before func()) *answerWatch {
	w := &answerWatch{before: before, seen: make(chan struct{}), forward: make(chan struct{})}
	w.release = sync.OnceFunc(func() { close(w.forward) })
	return w
}

func (w *answerWatch) connection() func([]byte) {
	var tail []byte // of the previous chunk, because a word may be split
	kept := false
	return func(chunk []byte) {
		text := append(tail, chunk...)
		if at := bytes.Index(text, []byte("INSERT INTO answers")); at >= 0 {
			kept, text = true, text[at:]
		}
		if kept && bytes.Contains(text, []byte("COMMIT")) {
			w.once.Do(func() {
				w.before()
				close(w.seen)
				<-w.forward
			})
		}
		tail = bytes.Clone(text[max(0, len(text)-len("INSERT INTO answers")):])
	}
}

// TestKilledAroundTheCommit kills a replica that queues many tasks, just before Postgres receives the COMMIT or just after. When the same
// request is sent again, there is one batch with all the tasks, and the answer is its id.
func TestKilledAroundTheCommit(t *testing.T) {
	t.Parallel()
	postgres, redis := servers.Postgres(t), servers.Redis(t)
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprintf("committed %t", committed), func(t *testing.T) {
			t.Parallel()
			k := newKilled(t, postgres, redis, committed)
			k.kill()
			if n := k.count(`SELECT count(*) FROM tasks`); n != manyTasks() && committed || n != 0 && !committed {
				t.Fatalf("%d tasks of the killed request: the run does not count", n)
			}
			k.Start()
			first := k.again()
			if first.replayed != committed || first.status != http.StatusCreated || first.Tasks != manyTasks() {
				t.Errorf("sent again: %+v, replayed must be %t", first, committed)
			}
			if second := k.again(); !second.replayed || second.made != first.made {
				t.Errorf("sent a third time: %+v, before: %+v", second, first)
			}
			k.expectOneBatch(first.ID)
			k.stopCleanly(t)
		})
	}
}

// killed is a replica with a proxy to Postgres that detects the COMMIT.
type killed struct {
	*replica
	t         *testing.T
	proxy     *servers.Proxy
	commit    *answerWatch
	committed bool
	db        *sql.DB
	body      string
}

func newKilled(t *testing.T, postgres *servers.PostgresServer, redis *servers.RedisServer, committed bool) *killed {
	t.Helper()
	k := &killed{t: t, proxy: servers.NewProxy(t, postgres.Addr()), committed: committed}
	k.commit = newAnswerWatch(func() {})
	if committed {
		k.commit = newAnswerWatch(k.proxy.HoldReplies)
		k.commit.release()
	}
	t.Cleanup(k.commit.release) // the proxy waits for it
	k.proxy.OnConnection(k.commit.connection)
	dsn := postgres.NewDatabase(t) + "&idle_in_transaction_session_timeout=120000" // long enough for a busy machine
	var err error
	if k.db, err = sql.Open("postgres", dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.db.Close() })
	k.replica = startReplica(t, strings.ReplaceAll(dsn, postgres.Addr(), k.proxy.Addr), redis.URL())
	var csv strings.Builder
	csv.WriteString("device,n\n")
	for i := range manyTasks() {
		fmt.Fprintf(&csv, "d-%d,%d\n", i, i)
	}
	k.body = csv.String()
	k.send(http.MethodPut, "/v1/pools/p", "application/json", `{"capacity":0}`)
	return k
}

// kill kills the replica (SIGKILL) just before or after the COMMIT of the request.
func (k *killed) kill() {
	k.t.Helper()
	answered := make(chan error, 1)
	go func() {
		_, err := k.post()
		answered <- err
	}()
	select {
	case <-k.commit.seen:
	case err := <-answered:
		k.t.Fatalf("answered before its COMMIT: %v", err)
	}
	if k.committed {
		ctx, cancel := context.WithTimeout(k.t.Context(), recoveryLimit)
		defer cancel()
		if err := poll(ctx, look, func() bool { return k.count(`SELECT count(*) FROM batches`) == 1 }); err != nil {
			k.t.Fatalf("the COMMIT is not seen: %v", err)
		}
	}
	k.Kill()
	if err := <-answered; err == nil {
		k.t.Fatal("answered all the same: the run does not count")
	}
	k.proxy.Cut()
	k.commit.release() // the connection is cut, so the COMMIT is dropped
	k.proxy.ReleaseReplies()
	k.proxy.Heal()
}

// made is the answer to a request that creates a batch.
type made struct{ ID, Tasks int64 }

type answered struct {
	made
	status   int
	replayed bool
}

// again repeats the request until the server has finished the first one.
func (k *killed) again() (a answered) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), recoveryLimit)
	defer cancel()
	if err := poll(ctx, look, func() bool {
		var err error
		if a, err = k.post(); err != nil {
			k.t.Error(err)
			return true
		}
		return a.status != http.StatusConflict
	}); err != nil {
		k.t.Fatalf("still under way: %+v, %v", a, err)
	}
	return a
}

func (k *killed) post() (a answered, err error) {
	response, err := k.request(http.MethodPost, "/v1/batches?pool=p", "text/csv", k.body)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	a.status, a.replayed = response.StatusCode, response.Header.Get("Idempotency-Replayed") == "true"
	return a, json.NewDecoder(response.Body).Decode(&a.made)
}

func (k *killed) send(method, path, contentType, body string) {
	k.t.Helper()
	response, err := k.request(method, path, contentType, body)
	if err != nil {
		k.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode > 299 {
		k.t.Fatalf("%s %s: %s", method, path, response.Status)
	}
}

func (k *killed) request(method, path, contentType, body string) (*http.Response, error) {
	request, err := http.NewRequest(method, "http://"+k.addr+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Idempotency-Key", retryKey)
	return (&http.Client{Timeout: 3 * time.Minute}).Do(request)
}

func (k *killed) count(query string, args ...any) (n int64) {
	k.t.Helper()
	if err := k.db.QueryRowContext(k.t.Context(), query, args...).Scan(&n); err != nil {
		k.t.Fatal(err)
	}
	return n
}

func (k *killed) expectOneBatch(id int64) {
	k.t.Helper()
	batches, tasks := k.count(`SELECT count(*) FROM batches`), k.count(`SELECT count(*) FROM tasks`)
	if mine := k.count(`SELECT count(DISTINCT device) FROM tasks WHERE batch = $1`, id); batches != 1 || tasks != manyTasks() || mine != manyTasks() {
		k.t.Errorf("%d batches, %d tasks, %d devices of batch %d: want 1 and %d", batches, tasks, mine, id, manyTasks())
	}
}

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

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const idempotencyKey = "spring-survey"

// largeBatchSize returns the maximum number of tasks in one request. With -short it is a tenth of this.
func largeBatchSize() int64 {
	if testing.Short() {
		return 10_000
	}
	return 100_000
}

// storedAnswerWatch watches each connection to Postgres. It detects the COMMIT that follows the stored answer of a
// request with an idempotency key.
type storedAnswerWatch struct {
	once    sync.Once
	before  func()        // called just before this COMMIT is forwarded
	reached chan struct{} // closed after before has returned
	forward chan struct{} // closed when the COMMIT may be forwarded
	release func()        // closes forward
}

func newStoredAnswerWatch(before func()) *storedAnswerWatch {
	w := &storedAnswerWatch{before: before, reached: make(chan struct{}), forward: make(chan struct{})}
	w.release = sync.OnceFunc(func() { close(w.forward) })
	return w
}

func (w *storedAnswerWatch) watchConnection() func([]byte) {
	var tail []byte // end of the previous chunk, because a word may be split between two chunks
	kept := false
	return func(chunk []byte) {
		text := append(tail, chunk...)
		if at := bytes.Index(text, []byte("INSERT INTO answers")); at >= 0 {
			kept, text = true, text[at:]
		}
		if kept && bytes.Contains(text, []byte("COMMIT")) {
			w.once.Do(func() {
				w.before()
				close(w.reached)
				<-w.forward
			})
		}
		tail = bytes.Clone(text[max(0, len(text)-len("INSERT INTO answers")):])
	}
}

// TestKilledAroundTheCommit kills a replica that is queuing many tasks, just before or just after Postgres receives
// the COMMIT. The same request is then sent again. There must be one batch with all tasks, and the answer must have
// its id.
func TestKilledAroundTheCommit(t *testing.T) {
	t.Parallel()
	postgres, redis := servers.StartPostgres(t), servers.StartRedis(t)
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprintf("committed %t", committed), func(t *testing.T) {
			t.Parallel()
			k := newKilledReplica(t, postgres, redis, committed)
			k.killAtCommit()
			if n := k.queryCount(`SELECT count(*) FROM tasks`); n != largeBatchSize() && committed || n != 0 && !committed {
				t.Fatalf("%d tasks of the killed request: the run does not count", n)
			}
			k.Start()
			first := k.retryRequest()
			if first.replayed != committed || first.status != http.StatusCreated || first.Tasks != largeBatchSize() {
				t.Errorf("sent again: %+v, replayed must be %t", first, committed)
			}
			if second := k.retryRequest(); !second.replayed || second.createdBatch != first.createdBatch {
				t.Errorf("sent a third time: %+v, before: %+v", second, first)
			}
			k.expectOneBatch(first.ID)
			k.stopCleanly(t)
		})
	}
}

// killedReplica is a replica that the test kills. A proxy between the replica and Postgres detects the COMMIT of the request.
type killedReplica struct {
	*replica
	t         *testing.T
	proxy     *servers.Proxy
	commit    *storedAnswerWatch
	committed bool
	db        *sql.DB
	body      string
}

func newKilledReplica(t *testing.T, postgres *servers.PostgresServer, redis *servers.RedisServer, committed bool) *killedReplica {
	t.Helper()
	k := &killedReplica{t: t, proxy: servers.NewProxy(t, postgres.Addr()), committed: committed}
	k.commit = newStoredAnswerWatch(func() {})
	if committed {
		k.commit = newStoredAnswerWatch(k.proxy.HoldReplies)
		k.commit.release()
	}
	t.Cleanup(k.commit.release) // until release is called, the proxy waits
	k.proxy.OnConnection(k.commit.watchConnection)
	dsn := postgres.NewDatabase(t) + "&idle_in_transaction_session_timeout=120000" // long enough for a busy machine
	var err error
	if k.db, err = sql.Open("postgres", dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.db.Close() })
	k.replica = startReplica(t, strings.ReplaceAll(dsn, postgres.Addr(), k.proxy.Addr), redis.URL())
	var csv strings.Builder
	csv.WriteString("device,n\n")
	for i := range largeBatchSize() {
		fmt.Fprintf(&csv, "d-%d,%d\n", i, i)
	}
	k.body = csv.String()
	k.sendRequest(http.MethodPut, "/v1/pools/p", "application/json", `{"capacity":0}`)
	return k
}

// killAtCommit kills the replica (SIGKILL) just before or just after the COMMIT of the request reaches Postgres.
func (k *killedReplica) killAtCommit() {
	k.t.Helper()
	answered := make(chan error, 1)
	go func() {
		_, err := k.postBatch()
		answered <- err
	}()
	select {
	case <-k.commit.reached:
	case err := <-answered:
		k.t.Fatalf("answered before its COMMIT: %v", err)
	}
	if k.committed {
		ctx, cancel := context.WithTimeout(k.t.Context(), recoveryLimit)
		defer cancel()
		if err := poll(ctx, ledgerPause, func() bool { return k.queryCount(`SELECT count(*) FROM batches`) == 1 }); err != nil {
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
	k.proxy.EndCut()
}

// createdBatch is the response to a request that creates a batch.
type createdBatch struct{ ID, Tasks int64 }

type batchResponse struct {
	createdBatch
	status   int
	replayed bool
}

// retryRequest sends the request again until the server has finished the first one.
func (k *killedReplica) retryRequest() (a batchResponse) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), recoveryLimit)
	defer cancel()
	if err := poll(ctx, ledgerPause, func() bool {
		var err error
		if a, err = k.postBatch(); err != nil {
			k.t.Error(err)
			return true
		}
		return a.status != http.StatusConflict
	}); err != nil {
		k.t.Fatalf("still under way: %+v, %v", a, err)
	}
	return a
}

func (k *killedReplica) postBatch() (a batchResponse, err error) {
	response, err := k.doRequest(http.MethodPost, "/v1/batches?pool=p", "text/csv", k.body)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	a.status, a.replayed = response.StatusCode, response.Header.Get("Idempotency-Replayed") == "true"
	return a, json.NewDecoder(response.Body).Decode(&a.createdBatch)
}

func (k *killedReplica) sendRequest(method, path, contentType, body string) {
	k.t.Helper()
	response, err := k.doRequest(method, path, contentType, body)
	must.Succeed(k.t, err)
	defer response.Body.Close()
	if response.StatusCode > 299 {
		k.t.Fatalf("%s %s: %s", method, path, response.Status)
	}
}

func (k *killedReplica) doRequest(method, path, contentType, body string) (*http.Response, error) {
	request, err := http.NewRequest(method, "http://"+k.addr+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Idempotency-Key", idempotencyKey)
	return (&http.Client{Timeout: 3 * time.Minute}).Do(request)
}

func (k *killedReplica) queryCount(query string, args ...any) (n int64) {
	k.t.Helper()
	must.Succeed(k.t, k.db.QueryRowContext(k.t.Context(), query, args...).Scan(&n))
	return n
}

func (k *killedReplica) expectOneBatch(id int64) {
	k.t.Helper()
	batches, tasks := k.queryCount(`SELECT count(*) FROM batches`), k.queryCount(`SELECT count(*) FROM tasks`)
	if mine := k.queryCount(`SELECT count(DISTINCT device) FROM tasks WHERE batch = $1`, id); batches != 1 || tasks != largeBatchSize() || mine != largeBatchSize() {
		k.t.Errorf("%d batches, %d tasks, %d devices of batch %d: want 1 and %d", batches, tasks, mine, id, largeBatchSize())
	}
}

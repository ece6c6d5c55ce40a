package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// mostMemory is the limit in KiB for the memory of a replica under any requests. More parked reports than in this test need more memory,
// see docs/operations.md.
const mostMemory = 512 << 10

// anotherFleetToken is the fleet token that an attacker has.
const anotherFleetToken = "another-fleet-token-of-the-tests"

// attack sends the largest permitted requests until at least one request of each kind was answered with the expected status.
type attack struct {
	*testing.T
	ctx  context.Context //nolint:containedctx // it is the life of the attack
	url  string
	wait sync.WaitGroup

	mu         sync.Mutex
	unfinished map[string]int // key: kind; value: the expected status
	answers    map[string]int // key: kind and status
	finished   context.CancelFunc
}

// kind is a kind of request.
type kind struct {
	name, method, path, form, accept, prefer string

	status int      // status of a complete request
	tokens []string // each token is used by this number of connections: each
	each   int
	body   func(n int) []byte // body for a connection; nil means no body
}

// again repeats the same request on all connections until ctx ends. A client waits as long as Retry-After asks.
func (x *attack) again(k kind) {
	for n := range len(k.tokens) * k.each {
		x.wait.Go(func() {
			var body []byte
			if k.body != nil {
				body = k.body(n)
			}
			path := strings.ReplaceAll(k.path, "{n}", strconv.Itoa(n))
			for x.ctx.Err() == nil {
				select {
				case <-time.After(x.send(k, path, k.tokens[n%len(k.tokens)], body)):
				case <-x.ctx.Done():
				}
			}
		})
	}
}

// send returns how long the replica asks the client to wait.
func (x *attack) send(k kind, path, token string, body []byte) (pause time.Duration) {
	r, err := http.NewRequestWithContext(x.ctx, k.method, x.url+path, bytes.NewReader(body))
	if err != nil {
		x.Error(err)
		return 0
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": k.form, "Accept": k.accept, "Prefer": k.prefer} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return time.Second // ctx ended, or the replica closed the connection during the body
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answers[fmt.Sprint(k.name, " ", response.StatusCode)]++
	if err == nil && response.StatusCode == k.status {
		if delete(x.unfinished, k.name); len(x.unfinished) == 0 {
			x.finished()
		}
	}
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 means that there was no Retry-After
	return time.Duration(seconds) * time.Second
}

// promises holds connections whose bodies are never completed.
func (x *attack) promises(connections int) {
	var dialer net.Dialer
	for n := range connections {
		x.wait.Go(func() {
			for x.ctx.Err() == nil {
				conn, err := dialer.DialContext(x.ctx, "tcp", strings.TrimPrefix(x.url, "http://"))
				if err != nil {
					continue
				}
				stop := context.AfterFunc(x.ctx, func() { conn.Close() })
				_, _ = fmt.Fprintf(conn, "POST /v1/devices/slow-%d/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 65000\r\n\r\n%s",
					n, anotherFleetToken, strings.Repeat(" ", 60_000))
				_, _ = io.Copy(io.Discard, conn) // until the replica closes the connection
				stop()
				conn.Close()
			}
		})
	}
}

// operators creates tokens.
func (x *attack) operators(role string, count int) (tokens []string) {
	x.Helper()
	for n := range count {
		r, err := http.NewRequest(http.MethodPost, x.url+"/v1/tokens", strings.NewReader(fmt.Sprintf(`{"name":"%s-%d","role":"%s"}`, role, n, role)))
		if err != nil {
			x.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+adminToken)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			x.Fatal(err)
		}
		var made struct{ Token string }
		if err := json.NewDecoder(response.Body).Decode(&made); err != nil || made.Token == "" {
			x.Fatalf("%s: %v", response.Status, err)
		}
		response.Body.Close()
		tokens = append(tokens, made.Token)
	}
	return tokens
}

func many(n int, line string) []byte {
	var out bytes.Buffer
	for i := range n {
		fmt.Fprintf(&out, line, i)
	}
	return out.Bytes()
}

// TestLargestRequestsFitIntoMemory checks that a replica stays below 512 MiB under the largest requests of all kinds at once, and answers
// them. Requests that must wait are answered one after another.
func TestLargestRequestsFitIntoMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: minutes of the largest requests there are; make test-long runs it")
	}
	plain := servers.Program{}
	r := startReplicaOf(t, plain.Path(t), servers.Postgres(t).NewDatabase(t), servers.Redis(t).URL(),
		"DISPATCHER_FLEET_TOKEN="+fleetToken+","+anotherFleetToken, "DISPATCHER_FLEET_TOKEN_MODE=any")
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	x := &attack{T: t, ctx: ctx, url: "http://" + r.addr, unfinished: map[string]int{}, answers: map[string]int{}, finished: cancel}
	x.send(kind{name: "pool", method: "PUT", form: plainType}, "/v1/pools/p", adminToken, []byte(`{"capacity":60}`))
	x.send(kind{name: "large tasks", method: "POST", form: ndjsonType}, "/v1/batches?pool=p", adminToken,
		many(2000, `{"device":"large-%d","payload":"`+strings.Repeat("x", 32<<10-10)+"\"}\n"))
	began := time.Now()
	x.load(x.operators("admin", 3), x.operators("operator", 5))
	x.wait.Wait()
	t.Logf("after %.0f s: %v", time.Since(began).Seconds(), x.answers)
	if len(x.unfinished) > 0 {
		t.Errorf("of these none came to its end: %v", x.unfinished)
	}
	if peak := peakMemory(t, r.Pid()); peak > mostMemory {
		t.Errorf("%d MiB at the highest, want less than %d", peak>>10, mostMemory>>10)
	} else {
		t.Logf("%d MiB at the highest", peak>>10)
	}
}

const (
	plainType  = "application/json"
	ndjsonType = "application/x-ndjson"
)

func (x *attack) load(admins, operators []string) {
	same := func(text []byte) func(int) []byte { return func(int) []byte { return text } }
	long := slices.Concat([]byte(`{"pool":"p","tasks":[`), many(999_999, `{"device":"d-%[1]d","payload":{"server":"st1","n":%[1]d}},`), []byte(`{"device":"d"}]}`))
	bad := slices.Concat([]byte(`{"pool":"p","tasks":[`), bytes.Repeat([]byte(`{},`), 20<<20), []byte(`{}]}`))
	lines := many(1_000_000, `{"device":"d-%d","payload":{"server":"st1"}}`+"\n")
	devices := func(n int) []byte { // each connection has its own devices: requests for the same devices would wait for one another
		return many(100_000, fmt.Sprintf(`{"id":"i-%d-`, n)+`%d","tags":{"area":"330100","model":"some model with a name, `+strings.Repeat("x", 80)+`"}}`+"\n")
	}
	report := slices.Concat([]byte(`{"id":"r","results":[`), many(99, `{"task":%d,"token":1,"status":"failed","output":"`+strings.Repeat("x", 600)+`"},`), []byte(`{"task":1,"token":1}]}`))
	all, fleet := append(admins, operators...), []string{fleetToken}
	batches, tasks := "/v1/batches", "/v1/tasks?batch=1&page_size=1000"
	kinds := []kind{
		{name: "long batch", method: "POST", path: batches, form: plainType, status: 201, tokens: all[:6], each: 1, body: same(long)},
		{name: "bad batch", method: "POST", path: batches, form: plainType, status: 422, tokens: []string{adminToken}, each: 2, body: same(bad)},
		{name: "batch of lines", method: "POST", path: batches + "?pool=p&duplicates=skip", form: ndjsonType, status: 201, tokens: all[2:], each: 1, body: same(lines)},
		{name: "windows", method: "PUT", path: "/v1/pools/q", form: plainType, status: 400, tokens: admins, each: 5, body: same([]byte(`{"windows":[` + strings.Repeat(`{},`, 340_000) + `{}]}`))},
		{name: "import", method: "POST", path: "/v1/devices?existing=rotate", form: ndjsonType, status: 201, tokens: all[2:], each: 1, body: devices},
		{name: "list", method: "GET", path: tasks, accept: plainType, status: 200, tokens: all, each: 3},
		{name: "stream", method: "GET", path: tasks, accept: "text/csv", status: 200, tokens: all, each: 3},
		{name: "report", method: "POST", path: "/v1/devices/r-{n}/report", form: plainType, status: 200, tokens: fleet, each: 128, body: same(report)},
		{name: "poll", method: "POST", path: "/v1/devices/poll-{n}/report", form: plainType, prefer: "wait=20", status: 200, tokens: fleet, each: 1000, body: same([]byte(`{}`))},
	}
	for _, k := range kinds {
		x.unfinished[k.name] = k.status
	}
	for _, k := range kinds {
		x.again(k)
	}
	x.promises(1000)
}

// peakMemory returns the peak memory of a process in KiB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("the system does not say how much memory a process had: ", err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

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

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// maxMemoryKiB is the maximum memory of a replica in KiB, whatever requests it gets. Only a replica with more parked reports than in this
// test needs more (docs/operations.md).
const maxMemoryKiB = 600 << 10

// anotherFleetToken is a valid fleet token that an attacker has.
const anotherFleetToken = "another-fleet-token-of-the-tests"

// attack sends the largest permitted requests of several kinds. It goes on until at least one request of each kind
// was answered with the expected status.
type attack struct {
	*testing.T
	ctx  context.Context //nolint:containedctx // the attack lasts as long as this context
	url  string
	wait sync.WaitGroup

	mu         sync.Mutex
	unfinished map[string]int // key: kind; value: the expected status
	answers    map[string]int // key: kind and status
	endAttack  context.CancelFunc
}

// requestKind is one kind of request that the attack sends.
type requestKind struct {
	name, method, path, contentType, accept, prefer string

	status        int      // status of a complete request
	tokens        []string // each token is used by connsPerToken connections
	connsPerToken int
	body          func(n int) []byte // body for a connection; nil means no body
}

// repeatRequest sends the same request over and over on all connections until ctx ends. After each response a
// client waits as long as Retry-After asks.
func (x *attack) repeatRequest(k requestKind) {
	for n := range len(k.tokens) * k.connsPerToken {
		x.wait.Go(func() {
			var body []byte
			if k.body != nil {
				body = k.body(n)
			}
			path := strings.ReplaceAll(k.path, "{n}", strconv.Itoa(n))
			for x.ctx.Err() == nil {
				select {
				case <-time.After(x.sendRequest(k, path, k.tokens[n%len(k.tokens)], body)):
				case <-x.ctx.Done():
				}
			}
		})
	}
}

// sendRequest sends one request. It returns how long the replica asks the client to wait.
func (x *attack) sendRequest(k requestKind, path, token string, body []byte) (pause time.Duration) {
	r, err := http.NewRequestWithContext(x.ctx, k.method, x.url+path, bytes.NewReader(body))
	if err != nil {
		x.Error(err)
		return 0
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": k.contentType, "Accept": k.accept, "Prefer": k.prefer} {
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
			x.endAttack()
		}
	}
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 means that there was no Retry-After
	return time.Duration(seconds) * time.Second
}

// holdOpenBodies holds this number of connections open, each with a request whose body is never completed.
func (x *attack) holdOpenBodies(connections int) {
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

func (x *attack) createTokens(role string, count int) (tokens []string) {
	x.Helper()
	for n := range count {
		r, err := http.NewRequest(http.MethodPost, x.url+"/v1/tokens", strings.NewReader(fmt.Sprintf(`{"name":"%s-%d","role":"%s"}`, role, n, role)))
		must.Succeed(x, err)
		r.Header.Set("Authorization", "Bearer "+adminToken)
		response, err := http.DefaultClient.Do(r)
		must.Succeed(x, err)
		var made struct{ Token string }
		if err := json.NewDecoder(response.Body).Decode(&made); err != nil || made.Token == "" {
			x.Fatalf("%s: %v", response.Status, err)
		}
		response.Body.Close()
		tokens = append(tokens, made.Token)
	}
	return tokens
}

func repeatLine(n int, line string) []byte {
	var out bytes.Buffer
	for i := range n {
		fmt.Fprintf(&out, line, i)
	}
	return out.Bytes()
}

// TestLargestRequestsFitIntoMemory sends the largest requests of all kinds at once. The replica must stay below 600
// MiB and answer them. Requests that must wait are answered one after the other.
func TestLargestRequestsFitIntoMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: minutes of the largest requests there are; make test-long runs it")
	}
	plain := servers.Program{}
	r := startReplicaBinary(t, plain.Path(t), servers.StartPostgres(t).NewDatabase(t), servers.StartRedis(t).URL(),
		"DISPATCHER_FLEET_TOKEN="+fleetToken+","+anotherFleetToken, "DISPATCHER_FLEET_TOKEN_MODE=any", "DISPATCHER_REGISTRATION_RATE=0")
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	x := &attack{T: t, ctx: ctx, url: "http://" + r.addr, unfinished: map[string]int{}, answers: map[string]int{}, endAttack: cancel}
	x.sendRequest(requestKind{name: "pool", method: "PUT", contentType: jsonType}, "/v1/pools/p", adminToken, []byte(`{"capacity":60}`))
	x.sendRequest(requestKind{name: "large tasks", method: "POST", contentType: ndjsonType}, "/v1/batches?pool=p", adminToken,
		repeatLine(2000, `{"device":"large-%d","payload":"`+strings.Repeat("x", 32<<10-10)+"\"}\n"))
	began := time.Now()
	x.startLoad(x.createTokens("admin", 3), x.createTokens("operator", 5))
	x.wait.Wait()
	t.Logf("after %.0f s: %v", time.Since(began).Seconds(), x.answers)
	if len(x.unfinished) > 0 {
		t.Errorf("of these none came to its end: %v", x.unfinished)
	}
	if peak := peakMemory(t, r.Pid()); peak > maxMemoryKiB {
		t.Errorf("%d MiB at the highest, want less than %d", peak>>10, maxMemoryKiB>>10)
	} else {
		t.Logf("%d MiB at the highest", peak>>10)
	}
}

const (
	jsonType   = "application/json"
	ndjsonType = "application/x-ndjson"
)

func (x *attack) startLoad(admins, operators []string) {
	same := func(text []byte) func(int) []byte { return func(int) []byte { return text } }
	long := slices.Concat([]byte(`{"pool":"p","tasks":[`), repeatLine(999_999, `{"device":"d-%[1]d","payload":{"server":"st1","n":%[1]d}},`), []byte(`{"device":"d"}]}`))
	bad := slices.Concat([]byte(`{"pool":"p","tasks":[`), bytes.Repeat([]byte(`{},`), 20<<20), []byte(`{}]}`))
	lines := repeatLine(1_000_000, `{"device":"d-%d","payload":{"server":"st1"}}`+"\n")
	devices := func(n int) []byte { // each connection has its own devices: requests for the same devices would wait for one another
		return repeatLine(100_000, fmt.Sprintf(`{"id":"i-%d-`, n)+`%d","tags":{"area":"330100","model":"some model with a name, `+strings.Repeat("x", 80)+`"}}`+"\n")
	}
	report := slices.Concat([]byte(`{"id":"r","results":[`), repeatLine(99, `{"task":%d,"token":1,"status":"failed","output":"`+strings.Repeat("x", 600)+`"},`), []byte(`{"task":1,"token":1}]}`))
	all, fleet := append(admins, operators...), []string{fleetToken}
	batches, tasks := "/v1/batches", "/v1/tasks?batch=1&page_size=1000"
	kinds := []requestKind{
		{name: "long batch", method: "POST", path: batches, contentType: jsonType, status: 201, tokens: all[:6], connsPerToken: 1, body: same(long)},
		{name: "bad batch", method: "POST", path: batches, contentType: jsonType, status: 422, tokens: []string{adminToken}, connsPerToken: 2, body: same(bad)},
		{name: "batch of lines", method: "POST", path: batches + "?pool=p&duplicates=skip", contentType: ndjsonType, status: 201, tokens: all[2:], connsPerToken: 1, body: same(lines)},
		{name: "windows", method: "PUT", path: "/v1/pools/q", contentType: jsonType, status: 400, tokens: admins, connsPerToken: 5, body: same([]byte(`{"windows":[` + strings.Repeat(`{},`, 340_000) + `{}]}`))},
		{name: "import", method: "POST", path: "/v1/devices?existing=rotate", contentType: ndjsonType, status: 201, tokens: all[2:], connsPerToken: 1, body: devices},
		{name: "list", method: "GET", path: tasks, accept: jsonType, status: 200, tokens: all, connsPerToken: 3},
		{name: "stream", method: "GET", path: tasks, accept: "text/csv", status: 200, tokens: all, connsPerToken: 3},
		{name: "report", method: "POST", path: "/v1/devices/r-{n}/report", contentType: jsonType, status: 200, tokens: fleet, connsPerToken: 128, body: same(report)},
		{name: "poll", method: "POST", path: "/v1/devices/poll-{n}/report", contentType: jsonType, prefer: "wait=20", status: 200, tokens: fleet, connsPerToken: 1000, body: same([]byte(`{}`))},
	}
	for _, k := range kinds {
		x.unfinished[k.name] = k.status
	}
	for _, k := range kinds {
		x.repeatRequest(k)
	}
	x.holdOpenBodies(1000)
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
	must.Succeed(t, err)
	return kib
}

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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/testservers"
)

// mostMemory is what a replica stays below, in KiB, whatever it is sent. (Parked reports
// come on top: docs/operations.md says how much.)
const mostMemory = 512 << 10

// attack sends the largest requests that are permitted.
type attack struct {
	*testing.T
	ctx    context.Context //nolint:containedctx // it is the life of the attack
	url    string
	tokens []string // operators'
	wait   sync.WaitGroup

	mu       sync.Mutex
	statuses map[string]int
}

// again sends the same from so many connections until the time is up.
func (x *attack) again(connections int, method, path, form, accept string, body func() io.Reader) {
	tokens := x.tokens
	for n := range connections {
		x.wait.Go(func() {
			for x.ctx.Err() == nil {
				x.send(tokens[n%len(tokens)], method, path, form, accept, body())
			}
		})
	}
}

func (x *attack) send(token, method, path, form, accept string, body io.Reader) {
	r, err := http.NewRequestWithContext(x.ctx, method, x.url+path, body)
	if err != nil {
		x.Error(err)
		return
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", form)
	r.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return // the time was up, or the replica had enough of the body
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	x.mu.Lock()
	defer x.mu.Unlock()
	path, _, _ = strings.Cut(path, "?")
	if strings.HasSuffix(path, "/report") {
		path = "report"
	}
	x.statuses[fmt.Sprint(method, " ", path, " ", form, " ", response.StatusCode)]++
}

// promises holds connections whose bodies never come whole.
func (x *attack) promises(connections int) {
	for n := range connections {
		conn, err := net.Dial("tcp", strings.TrimPrefix(x.url, "http://"))
		if err != nil {
			x.Fatal(err)
		}
		x.Cleanup(func() { conn.Close() })
		_, _ = fmt.Fprintf(conn, "POST /v1/devices/slow-%d/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 65000\r\n\r\n%s",
			n, fleetToken, strings.Repeat(" ", 60_000))
	}
}

// operator makes a token.
func (x *attack) operator(name string) {
	x.Helper()
	r, err := http.NewRequest(http.MethodPost, x.url+"/v1/tokens", strings.NewReader(`{"name":"`+name+`","role":"operator"}`))
	if err != nil {
		x.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		x.Fatal(err)
	}
	defer response.Body.Close()
	var made struct{ Token string }
	if err := json.NewDecoder(response.Body).Decode(&made); err != nil || made.Token == "" {
		x.Fatalf("%s: %v", response.Status, err)
	}
	x.tokens = append(x.tokens, made.Token)
}

func many(n int, line string) []byte {
	var out bytes.Buffer
	for i := range n {
		fmt.Fprintf(&out, line, i)
	}
	return out.Bytes()
}

// A replica under the largest requests of all kinds at once stays below 512 MiB.
func TestLargestRequestsFitIntoMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: a minute of the largest requests there are; make test-long runs it")
	}
	plain := testservers.Program{}
	r := startReplicaOf(t, plain.Path(t), testservers.Postgres(t).NewDatabase(t), testservers.Redis(t).URL())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x := &attack{T: t, ctx: ctx, url: "http://" + r.addr, tokens: []string{adminToken}, statuses: map[string]int{}}
	for n := range 5 {
		x.operator(fmt.Sprint("op-", n))
	}
	const ndjson = "application/x-ndjson"
	x.send(adminToken, "PUT", "/v1/pools/p", "application/json", "", strings.NewReader(`{"capacity":60}`))
	x.send(adminToken, "POST", "/v1/batches?pool=p", ndjson, "", bytes.NewReader(many(2000, `{"device":"large-%d","payload":"`+strings.Repeat("x", 32<<10-10)+"\"}\n")))
	x.load()
	x.wait.Wait()
	for what, n := range x.statuses {
		t.Log(n, what)
	}
	if peak := peakMemory(t, r.Pid()); peak > mostMemory {
		t.Errorf("%d MiB at the highest, want less than %d", peak>>10, mostMemory>>10)
	} else {
		t.Logf("%d MiB at the highest", peak>>10)
	}
}

func (x *attack) load() {
	const ndjson, plain = "application/x-ndjson", "application/json"
	from := func(text []byte) func() io.Reader { return func() io.Reader { return bytes.NewReader(text) } }
	long := append(append([]byte(`{"pool":"p","tasks":[`), many(1_000_000, `{"device":"d-%[1]d","payload":{"server":"st1","n":%[1]d}},`)...), `{"device":"d"}]}`...)
	long = long[:min(len(long), 64<<20)]
	bad := append(append([]byte(`{"pool":"p","tasks":[`), bytes.Repeat([]byte(`{},`), 20<<20)...), `{}]}`...)
	windows := []byte(`{"windows":[` + strings.Repeat(`{},`, 340_000) + `{}]}`)
	lines, devices := many(1_000_000, `{"device":"d-%d","payload":{"server":"st1"}}`+"\n"), many(100_000, `{"id":"i-%d","tags":{"area":"330100","model":"some model with a name, `+strings.Repeat("x", 80)+`"}}`+"\n")
	report := append(append([]byte(`{"id":"r","results":[`), many(99, `{"task":%d,"token":1,"status":"failed","output":"`+strings.Repeat("x", 600)+`"},`)...), `{"task":1,"token":1}]}`...)
	x.again(6, "POST", "/v1/batches", plain, "", from(long))
	x.again(4, "POST", "/v1/batches", plain, "", from(bad))
	x.again(16, "PUT", "/v1/pools/q", plain, "", from(windows))
	x.again(6, "POST", "/v1/batches?pool=p&duplicates=skip", ndjson, "", from(lines))
	x.again(6, "POST", "/v1/devices?existing=rotate", ndjson, "", from(devices))
	x.again(24, "GET", "/v1/tasks?page_size=1000", "", plain, from(nil))
	x.again(24, "GET", "/v1/tasks?page_size=1", "", "text/csv", from(nil))
	x.tokens = []string{fleetToken}
	for n := range 32 {
		x.again(4, "POST", fmt.Sprintf("/v1/devices/d-%d/report", n), plain, "", from(report))
	}
	x.promises(1000)
}

// peakMemory of a process, in KiB.
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

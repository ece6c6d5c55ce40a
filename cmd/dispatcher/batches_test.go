package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestEveryFieldOfABatchArrives(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.writeFile("shared.json", `{"server":"st1","streams":[1,2]}`)
	fields := []string{
		"--pool=p", "--name=b", "--kind=k", "--payload=@shared.json", "--priority=5", "--weight=2", "--lane=urgent", "--not-before=2026-01-01T00:00:00Z",
		"--not-after=2099-01-01T00:00:00Z", "--window=0 1 * * * 4h Asia/Shanghai", "--finish-inside=false", "--max-attempts=7", "--retry-on=failed",
		"--limits=@limits.json", "--retry-backoff=90s", "--on-lost=fail", "--lease=2m", "--max-run=30m", "--max-wait=36h", "--abort-failure=0.5", "--abort-min=10",
	}
	d.writeFile("limits.json", `[{"name":"n","per":"device","algorithm":"fixed","per_ms":1000,"max":7}]`)
	d.writeFile("tasks.csv", "device,n:json\nd-1,4\nd-2,\n")
	d.writeFile("tasks.ndjson", `{"device":"d-1","payload":{"n":4}}`+"\n"+`{"device":"d-2"}`+"\n")
	var first map[string]any
	for _, source := range [][]string{{"-f", "tasks.csv"}, {"-f", "tasks.ndjson"}, {"--device", "d-1", "--device", "d-2"}} {
		var made struct{ ID, Tasks json.Number }
		d.decodeOutput(&made, "batches create", append(source, fields...)...)
		var b map[string]any
		d.decodeOutput(&b, "batches get "+made.ID.String())
		var task map[string]any
		d.decodeOutput(&task, "tasks get "+map[bool]string{true: "1", false: made.ID.String()}[made.ID == "1"])
		for _, moves := range []string{"id", "created_at", "opens_at", "closes_at"} {
			delete(b, moves)
		}
		if first == nil {
			first = b
			want := map[string]any{
				"name": "b", "kind": "k", "priority": 5.0, "weight": 2.0, "lane": "urgent", "finish_inside": false, "max_attempts": 7.0, "retry_backoff_ms": 90000.0,
				"on_lost": "fail", "lease_ms": 120000.0, "max_run_ms": 1800000.0, "max_wait_ms": 129600000.0, "not_before": "2026-01-01T00:00:00.000Z", "total": 2.0,
			}
			for name, value := range want {
				if b[name] != value {
					t.Errorf("%s is %v, want %v", name, b[name], value)
				}
			}
			if diff := cmp.Diff(map[string]any{"failure": 0.5, "min": 10.0}, b["abort"]); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]any{map[string]any{"name": "n", "per": "device", "algorithm": "fixed", "per_ms": 1000.0, "max": 7.0}}, b["limits"]); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(map[string]any{"server": "st1", "streams": []any{1.0, 2.0}, "n": 4.0}, task["payload"]); diff != "" {
				t.Error(diff)
			}
		}
		if diff := cmp.Diff(first, b); diff != "" {
			t.Errorf("%v makes another batch:\n%s", source, diff)
		}
	}
}

func TestCreateBatchRefuses(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.writeFile("bad.csv", "device\nd-1\na/b\n")
	d.writeFile("tasks.txt", "device\nd-1\n")
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"--pool p -f bad.csv":                                 {1, "line 3"},
		"--pool p -f tasks.txt":                               {2, "--format"},
		"--pool p -f -":                                       {2, "--format"},
		"--pool p -f none.csv":                                {2, "none.csv"},
		"--pool p --device d --payload {":                     {2, "--payload"},
		"--pool p --device d --payload @none":                 {2, "none"},
		"--pool p --device d --abort-min 3":                   {2, "--abort-failure"},
		"--pool p --device d --tag a=b":                       {2, "tag"},
		"--pool p --device d --wait --dry-run":                {2, "dry-run"},
		"--pool none --device d":                              {1, "unknown_pool"},
		"--pool p --device d --unknown-devices refuse":        {1, "unknown_device"},
		"--pool p --device d --not-after yesterday":           {1, "not_after"},
		"--pool p --tag a=b":                                  {1, "no_tasks"},
		"--pool p --device d --max-attempts 101":              {1, "max_attempts"},
		"--pool p -f tasks.txt --format csv --dry-run":        {0, ""},
		"--pool p -f tasks.txt --format csv --on-lost forget": {1, "on_lost"},
	} {
		d.runCommand("", append([]string{"batches", "create"}, strings.Fields(line)...)...).expectExit(want.code).expectErrors(want.says)
	}
	d.expectOutput("batches list --output json", "[]\n")
	if out := d.runCommand("device\nd-1\nd-2\n", "batches", "create", "--pool", "p", "-f", "-", "--format", "csv", "--dry-run").expectExit(0).out; out != "2 tasks would be queued\n" {
		t.Errorf("%q", out)
	}
}

func TestTagsSelectDevices(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.run("devices create d-1 --tag area=1,city=hz")
	d.run("devices create d-2 --tag area=1")
	d.expectOutput("batches create --pool p --tag area=1 --dry-run", "2 tasks would be queued\n")
	for _, more := range [][]string{{"--dry-run"}, nil} { // an unregistered device causes a warning, also in a dry run
		made := d.runCommand("", append([]string{"batches", "create", "--pool", "p", "--name", "x", "--device", "d-1", "--device", "d-7", "--device", "d-8"}, more...)...)
		made.expectExit(0).expectErrors("Warning: 2 tasks are for devices that are not registered, such as d-7")
	}
	d.runCommand("", "batches", "create", "--pool", "p", "--device", "d-1", "--dry-run").expectExit(0).expectNoErrors()
	d.expectOutput("batches create --pool p --tag area=1 --tag city=hz", "id  2\ntasks  1\n")
}

func TestBatchesAreSteered(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	d.run("batches create --pool p --name first --device d-1 --device d-2 --device d-3")
	d.sendReport("d-1", `{"id":"1"}`)
	if got := maskVariableText(d.run("batches list")); got != "ID  NAME  POOL  STATE  DONE  FAILED  DISPATCHED  ETA  CREATED\n1  first  p  running  0/3 0%  0  1  TIME\n" {
		t.Error(got)
	}
	d.run("batches set 1 --priority 3 --not-after 2099-01-01T00:00:00Z --weight 4 --max-attempts 9 --lane urgent --max-wait 90m")
	if got := maskVariableText(d.run("batches list --lane urgent")); !strings.Contains(got, "\n1  first") {
		t.Error(got)
	}
	if got := maskVariableText(d.run("batches list --lane normal")); strings.Contains(got, "first") {
		t.Error(got)
	}
	var b struct {
		Priority, Weight int
		NotAfter         *string `json:"not_after"`
		MaxAttempts      int     `json:"max_attempts"`
		MaxWait          int64   `json:"max_wait_ms"`
	}
	if d.decodeOutput(&b, "batches get 1"); b.Priority != 3 || b.NotAfter == nil || b.Weight != 4 || b.MaxAttempts != 9 || b.MaxWait != 90*60*1000 {
		t.Errorf("%+v", b)
	}
	if d.decodeOutput(&b, "batches set 1 --never-expires"); b.NotAfter != nil {
		t.Errorf("%+v", b)
	}
	if d.decodeOutput(&b, "batches set 1 --no-max-wait"); b.MaxWait != 0 {
		t.Errorf("%+v", b)
	}
	d.runCommand("", "batches", "set", "1").expectExit(2).expectErrors("nothing to change")
	if got := maskVariableText(d.run("batches pause 1 --reason slow")); !strings.Contains(got, "state  paused\n") || !strings.Contains(got, "pause_reason  slow\n") {
		t.Error(got)
	}
	if got := maskVariableText(d.run("batches resume 1")); !strings.Contains(got, "state  running\n") {
		t.Error(got)
	}
	d.runCommand("", "batches", "cancel", "1").expectExit(2).expectErrors("Cancel batch 1 first: 2 tasks wait, 1 dispatched", "--yes")
	if got := maskVariableText(d.run("batches cancel 1 --yes")); !strings.Contains(got, "state  cancelling\n") {
		t.Error(got)
	}
	d.sendReport("d-1", `{"id":"2","results":[{"task":1,"token":1,"status":"failed"}]}`)
	watched := maskVariableText(d.run("batches watch 1"))
	if !strings.Contains(watched, "state  cancelled\n") || !strings.Contains(watched, "counts  3 cancelled\n") {
		t.Errorf("watched to the end:\n%s", watched)
	}
	if got := maskVariableText(d.run("batches list")); !strings.Contains(got, "first  p  cancelled  3/3 100%  0  0  TIME\n") {
		t.Errorf("what was cancelled is no failure:\n%s", got)
	}
	if got := maskVariableText(d.run("batches get 1")); !strings.Contains(got, "\nlease  as in the pool\nmax_run  1h\n") {
		t.Errorf("defaults are not said:\n%s", got)
	}
	if lines := strings.Split(strings.TrimSpace(d.run("batches get 1 --watch --output json")), "\n"); len(lines) != 1 || !json.Valid([]byte(lines[0])) {
		t.Errorf("as JSON the batch once, in a line: %q", lines)
	}
	d.runCommand("", "batches", "get", "9").expectExit(1).expectErrors("not_found", "dispatcher batches list")
}

func TestWaitEndsWithTheBatch(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	for status, want := range map[string]int{"succeeded": 0, "rejected": 1} {
		wait := startProgram(t, d.environ, "batches", "create", "--pool", "p", "--device", "d-"+status, "--wait")
		wait.waitForOutput(t, `batch (\d+): 1 task\n`)
		d.endTask("d-"+status, status)
		<-wait.ended
		if got := wait.cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit %d, want %d\n%s", status, got, want, wait.String())
		}
		wait.waitForOutput(t, `state +finished`)
		if want == 1 {
			wait.waitForOutput(t, `1 of 1 task did not succeed: 1 failed, 0 timed out`)
		}
	}
	cancelled := startProgram(t, d.environ, "batches", "create", "--pool", "p", "--device", "d-8", "--wait")
	d.run("batches cancel --yes " + cancelled.waitForOutput(t, `batch (\d+): 1 task\n`))
	<-cancelled.ended
	if got := cancelled.cmd.ProcessState.ExitCode(); got != 1 {
		t.Errorf("cancelled: exit %d, want 1\n%s", got, cancelled.String())
	}
	cancelled.waitForOutput(t, `1 of 1 task did not succeed: 0 failed, 0 timed out, 1 cancelled`)
	wait := startProgram(t, d.environ, "batches", "create", "--pool", "p", "--device", "d-9", "--wait")
	id := wait.waitForOutput(t, `batch (\d+): 1 task\n`)
	if code := wait.signalAndWait(t, syscall.SIGINT); code != 1 {
		t.Errorf("exit %d after Ctrl-C, want 1: it is not known how it ends", code)
	}
	wait.waitForOutput(t, `interrupted: batch `+id+` continues`)
	var b struct{ State string }
	if d.decodeOutput(&b, "batches get "+id); b.State != "running" {
		t.Errorf("%+v", b)
	}
}

// flakyProxy is a proxy in front of a server. It loses answers or refuses requests.
type flakyProxy struct {
	*httputil.ReverseProxy
	closeConnections func() // closes all connections

	mu               sync.Mutex
	answersToLose    int // number of POST requests that are executed and whose answers are lost
	requestsToRefuse int // number of requests that are answered with 503
	idempotencyKeys  []string
}

func (d *commandRunner) useFlakyProxy() *flakyProxy {
	d.Helper()
	target, err := url.Parse(d.url)
	must.Succeed(d, err)
	f := &flakyProxy{ReverseProxy: httputil.NewSingleHostReverseProxy(target)}
	f.ModifyResponse = func(r *http.Response) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Request.Method == http.MethodPost && f.answersToLose > 0 {
			f.answersToLose--
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	server := httptest.NewServer(http.HandlerFunc(f.serve))
	d.Cleanup(server.Close)
	d.Cleanup(server.CloseClientConnections)
	f.closeConnections = server.CloseClientConnections
	d.environ[0] = "DISPATCHER_URL=" + server.URL
	return f
}

// failNext sets how many answers to lose and how many requests to refuse from now on.
func (f *flakyProxy) failNext(lostCount, refusedCount int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answersToLose, f.requestsToRefuse = lostCount, refusedCount
}

// receivedKeys returns the keys of the received POST requests.
func (f *flakyProxy) receivedKeys() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.idempotencyKeys)
}

func (f *flakyProxy) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	if r.Method == http.MethodPost {
		f.idempotencyKeys = append(f.idempotencyKeys, r.Header.Get("Idempotency-Key"))
	}
	refused := f.requestsToRefuse > 0
	if refused {
		f.requestsToRefuse--
	}
	f.mu.Unlock()
	if refused {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	f.ServeHTTP(w, r)
}

// The server executed a request whose answer was lost. If the request is sent again with the same
// key, it is not executed twice.
func TestLostAnswersQueueNothingTwice(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	f := d.useFlakyProxy()
	d.writeFile("tasks.csv", "device\n"+strings.Repeat("d-1\n", 1000))
	f.failNext(2, 1)
	made := d.runCommand("", "batches", "create", "--pool", "p", "-f", "tasks.csv").expectExit(0).expectErrors("retrying in")
	if maskVariableText(made.out) != "id  1\ntasks  1000\n" {
		t.Errorf("%s", made.out)
	}
	keys := f.receivedKeys()
	if len(keys) != 4 || keys[0] == "" || keys[0] != keys[3] {
		t.Errorf("keys %q: four tries with one key", keys)
	}
	f.failNext(1, 0)
	d.runCommand("device\nd-1\n", "batches", "create", "--pool", "p", "-f", "-", "--format", "csv").expectExit(1).expectErrors("may have been carried out")
	var list []struct{ Total int }
	if d.decodeOutput(&list, "batches list"); len(list) != 2 || list[0].Total != 1 || list[1].Total != 1000 {
		t.Errorf("%+v: standard input cannot be sent again, and a file was queued once", list)
	}
	if keys := f.receivedKeys(); keys[4] == keys[0] {
		t.Error("another run has the same key")
	}
	f.failNext(1, 0)
	d.runCommand("", "devices", "create", "d-5").expectExit(1).expectErrors("its token was lost", "dispatcher devices token d-5")
	f.failNext(1, 0)
	d.runCommand("", "pools", "pause", "p").expectExit(1).expectErrors("may have been carried out")
	f.failNext(0, 1)
	d.runCommand("", "pools", "list").expectExit(0).expectErrors("retrying in")
}

func TestDuplicatesInAFile(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.writeFile("tasks.csv", "device,n:json\nd-1,4\nd-2,4\nd-1,4\n")
	d.runCommand("", "batches", "create", "--pool", "p", "-f", "tasks.csv", "--duplicates", "refuse").expectExit(1).expectErrors("duplicate_task", "line 4", "line 2")
	d.expectOutput("batches create --pool p -f tasks.csv --duplicates skip --dry-run", "2 tasks would be queued, 1 duplicate skipped\n")
	d.expectOutput("batches create --pool p -f tasks.csv --duplicates skip", "id  1\ntasks  2\nskipped  1\n")
	d.expectOutput("batches create --pool p -f tasks.csv", "id  2\ntasks  3\n")
	d.runCommand("", "batches", "create", "--pool", "p", "-f", "tasks.csv", "--duplicates", "perhaps").expectExit(1).expectErrors("duplicates")
}

// The command shows the condition of a batch as its state. The members state and condition of other objects, such as a
// payload, must stay unchanged.
func TestOnlyABatchHasACondition(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]string{
		`{"id":1,"state":"active","condition":"waiting"}`:                                       "id  1\nstate  waiting\n",
		`{"id":1,"state":"active","condition":"waiting","payload":{"state":"a","condition":1}}`: "id  1\nstate  waiting\npayload  {\"state\":\"a\",\"condition\":1}\n",
		`{"id":1,"state":"running","condition":"running","counts":{"dispatched":0}}`:            "id  1\nstate  waiting\n",
		`{"id":1,"state":"running","condition":"running","counts":{"dispatched":1}}`:            "id  1\nstate  running\ncounts  1 dispatched\n",
		`{"id":2,"state":"pending","payload":{"state":"ok","condition":"x"}}`:                   "id  2\nstate  pending\npayload  {\"state\":\"ok\",\"condition\":\"x\"}\n",
	} {
		var out bytes.Buffer
		if err := (&console{out: &out}).show([]byte(object)); err != nil || maskVariableText(out.String()) != want {
			t.Errorf("%s is shown as %q, want %q (%v)", object, out.String(), want, err)
		}
	}
}

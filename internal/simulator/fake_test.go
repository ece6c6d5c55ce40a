package simulator

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	testOperatorToken = "operator-token"
	testFleetToken    = "fleet-token"
)

// fakeDispatcher is a small dispatcher in memory that follows docs/protocol.md. A test can make it break its
// promises.
type fakeDispatcher struct {
	mu                     sync.Mutex
	pool                   *operators.Pool
	tasks                  []*fakeTask // the id of a task is its index + 1
	batchSizes             []int64     // number of tasks of the batch with id index + 1
	lastToken              int64
	lapsedGrants           int
	badAuth                int
	receivedReports        int
	seenIDs                map[string]bool
	deviceTokens           map[string]string // key: device; value: its own token
	rotatedTokens          int
	registrationsToRefuse  int             // number of registrations that are answered with 503
	refusesRotatingImports bool            // refuses imports that rotate tokens
	reportedDevices        map[string]bool // devices that reported since the test cleared the map
	resentMessages         int             // messages that an MQTT client resent by itself

	reportAfterMS   int64
	repeatedReports int

	extraSlots    int           // grants this many more slots than the capacity
	sameSlot      bool          // every grant has slot 0
	loseTask      int64         // this task is never granted, and counts as ended
	hideTask      int64         // this task is missing from lists
	alterOutput   int64         // this task is listed with another output
	ackEarly      int64         // the result of this task is acknowledged once before it is recorded
	forgetResult  int64         // the result of this task is acknowledged and then lost
	acceptAll     bool          // malformed reports are answered with 200
	grantsNothing bool          // nothing is granted yet
	omitsRenewals bool          // replies do not answer running tasks
	staleTokens   bool          // tokens decrease from device to device
	lease         time.Duration // lease of every grant
	margin        time.Duration // the device gets a lease that is this much shorter
}

type fakeTask struct {
	id, batch int64
	device    string
	payload   json.RawMessage
	state     string // pending, dispatched or terminal
	token     int64
	slot      int
	until     time.Time
	output    json.RawMessage
	tokens    map[int64]string // key: token of an ended attempt; value: how it ended
}

func newFake(t *testing.T) (*fakeDispatcher, *httptest.Server) {
	t.Helper()
	f := &fakeDispatcher{lease: time.Minute, margin: 400 * time.Millisecond, reportAfterMS: 100, seenIDs: map[string]bool{}, deviceTokens: map[string]string{}, reportedDevices: map[string]bool{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s
}

// shortenLeases makes the leases of this dispatcher end soon. By default, no lease ends during a test even on a busy
// machine, so no result is sent twice. shortenLeases also makes waiting devices report less often, so that a busy
// machine has time for the devices that work.
func (f *fakeDispatcher) shortenLeases() {
	f.lease, f.margin, f.reportAfterMS = 1500*time.Millisecond, 700*time.Millisecond, 200
}

func (f *fakeDispatcher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	device, isReport := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/devices/"), "/report")
	token := testOperatorToken
	if isReport {
		token = f.tokenFor(device)
	}
	if r.Header.Get("Authorization") != "Bearer "+token {
		f.badAuth++
		writeJSON(w, http.StatusUnauthorized, map[string]any{"code": "unauthorized"})
		return
	}
	if isReport {
		status, answer := f.report(device, body)
		writeJSON(w, status, answer)
		return
	}
	f.serveOperator(w, r, body)
}

// tokenFor returns the token that the device must use: its own token if it has one, else the fleet token.
func (f *fakeDispatcher) tokenFor(device string) string {
	if token := f.deviceTokens[device]; token != "" {
		return token
	}
	return testFleetToken
}

// register creates a device or rotates its token.
func (f *fakeDispatcher) register(w http.ResponseWriter, r *http.Request, body []byte) {
	var in struct {
		ID      string `json:"id"`
		Overlap *int64 `json:"overlap_ms"`
	}
	_ = json.Unmarshal(body, &in)
	if r.Header.Get("Content-Type") == operators.TypeCSV && f.registrationsToRefuse == 0 {
		f.importDevices(w, r.URL.Query().Get("existing"), strings.Fields(string(body))[1:])
		return
	}
	id, rotate := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/devices/"), "/token")
	if !rotate {
		id = in.ID
	}
	switch known := f.deviceTokens[id] != ""; {
	case f.registrationsToRefuse > 0:
		f.registrationsToRefuse--
		writeJSON(w, http.StatusServiceUnavailable, map[string]any{"code": "unavailable"})
	case rotate && (!known || in.Overlap == nil || *in.Overlap != 0):
		writeJSON(w, http.StatusNotFound, map[string]any{"code": "not_found"})
	case !rotate && known:
		writeJSON(w, http.StatusConflict, map[string]any{"code": "conflict"})
	default:
		if rotate {
			f.rotatedTokens++
		}
		f.deviceTokens[id] = fmt.Sprintf("token %d of %s", f.rotatedTokens, id)
		writeJSON(w, http.StatusCreated, map[string]any{"id": id, "token": f.deviceTokens[id]})
	}
}

// importDevices imports devices. An existing device gets a new token, or none if existing is "skip".
func (f *fakeDispatcher) importDevices(w http.ResponseWriter, existing string, ids []string) {
	there := func(id string) bool { return f.deviceTokens[id] != "" }
	if f.refusesRotatingImports && existing == "rotate" && slices.ContainsFunc(ids, there) {
		writeJSON(w, http.StatusConflict, map[string]any{"code": "one_by_one"})
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "device,token\n")
	for _, id := range ids {
		if there(id) && existing == "skip" {
			_, _ = fmt.Fprintf(w, "%s,\n", id)
			continue
		}
		if there(id) {
			f.rotatedTokens++
		}
		f.deviceTokens[id] = fmt.Sprintf("token %d of %s", f.rotatedTokens, id)
		_, _ = fmt.Fprintf(w, "%s,%s\n", id, f.deviceTokens[id])
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	encodeTo(w, v)
}

func encodeTo(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}

// report handles a report in the same steps as HandleReport, but simplified. The caller must hold mu.
func (f *fakeDispatcher) report(device string, body []byte) (int, map[string]any) {
	f.receivedReports++
	f.reportedDevices[device] = true
	var r report
	if err := json.Unmarshal(body, &r); err != nil || len(body) > 64<<10 || len(r.Results) > 100 ||
		strings.Count(string(body), "{") > 300 || strings.Contains(string(body), strings.Repeat(`{"a":`, 17)) {
		if f.acceptAll {
			return http.StatusOK, map[string]any{"reason": "none"}
		}
		return http.StatusBadRequest, map[string]any{"code": "invalid_json"}
	}
	if f.seenIDs[r.ID] {
		f.repeatedReports++
	}
	f.seenIDs[r.ID] = true
	f.reap()
	reply := map[string]any{"re": r.ID, "reason": "none", "held_ms": 0, "report_after_ms": f.reportAfterMS}
	var acks, renewals, cancels []map[string]any
	mentioned := map[int64]bool{}
	for _, e := range r.Results {
		mentioned[e.Token] = true
		acks = append(acks, map[string]any{"task": e.Task, "token": e.Token, "outcome": f.recordResult(e)})
	}
	for _, e := range r.Running {
		mentioned[e.Token] = true
		t := f.tasks[e.Task-1]
		if t.state != "dispatched" || t.token != e.Token {
			cancels = append(cancels, map[string]any{"task": e.Task, "token": e.Token, "why": "stale"})
			continue
		}
		t.until = time.Now().Add(f.lease)
		renewals = append(renewals, map[string]any{"task": e.Task, "token": e.Token, "lease_ms": f.leaseMS(t)})
	}
	reply["acks"], reply["renewed"], reply["cancel"] = acks, renewals, cancels
	if f.omitsRenewals {
		reply["renewed"] = nil
	}
	f.grantNext(device, mentioned, reply)
	return http.StatusOK, reply
}

func (f *fakeDispatcher) leaseMS(t *fakeTask) int64 {
	return (time.Until(t.until) - f.margin).Milliseconds()
}

func (f *fakeDispatcher) reap() {
	for _, t := range f.tasks {
		if t.state == "dispatched" && time.Now().After(t.until) {
			t.tokens[t.token] = "lapsed"
			t.state = "pending"
			f.lapsedGrants++
		}
	}
}

func (f *fakeDispatcher) recordResult(e result) string {
	t := f.tasks[e.Task-1]
	if t.id == f.ackEarly {
		f.ackEarly = 0
		return "recorded"
	}
	if t.state == "dispatched" && t.token == e.Token {
		t.tokens[e.Token] = "result"
		if t.state = e.Status; e.Status != "succeeded" {
			t.state = "pending"
		}
		if t.output = e.Output; t.id == f.forgetResult {
			t.state = "failed"
		}
		return "recorded"
	}
	switch t.tokens[e.Token] {
	case "result":
		return "duplicate"
	case "lapsed":
		if t.state == "pending" && e.Status == "succeeded" {
			t.state, t.output = "succeeded", e.Output
		}
		return "late"
	}
	return "unknown"
}

func (f *fakeDispatcher) grantNext(device string, mentioned map[int64]bool, reply map[string]any) {
	if f.grantsNothing {
		return
	}
	slots := map[int]bool{}
	for _, t := range f.tasks {
		if t.state != "dispatched" {
			continue
		}
		slots[t.slot] = true
		if t.device == device {
			if reply["reason"] = "busy"; !mentioned[t.token] && f.leaseMS(t) > 100 {
				f.addGrant(t, reply, 1)
			}
			return
		}
	}
	for _, t := range f.tasks {
		if t.device != device || t.state != "pending" || t.id == f.loseTask {
			continue
		}
		slot := 0
		for slots[slot] {
			slot++
		}
		if slot >= f.pool.Capacity+f.extraSlots {
			reply["reason"] = "full"
			return
		}
		t.state, t.slot, t.token, t.until = "dispatched", slot, f.nextToken(device), time.Now().Add(f.lease)
		f.addGrant(t, reply, 0)
		return
	}
}

// nextToken returns a fencing token that is higher than all earlier ones. If staleTokens is set, it is only higher
// than the earlier tokens of the same device.
func (f *fakeDispatcher) nextToken(device string) int64 {
	f.lastToken++
	if !f.staleTokens {
		return f.lastToken
	}
	round := int64(1)
	for _, t := range f.tasks {
		if t.device == device && t.token > 0 {
			round++
		}
	}
	return 1_000_000*round - f.lastToken
}

func (f *fakeDispatcher) addGrant(t *fakeTask, reply map[string]any, redelivered int) {
	slot := t.slot
	if f.sameSlot {
		slot = 0
	}
	reply["reason"] = "granted"
	reply["task"] = map[string]any{
		"id": t.id, "token": t.token, "pool": "sim", "slot": slot, "kind": "simulated", "payload": t.payload,
		"attempt": len(t.tokens) + 1, "redelivered": redelivered, "lease_ms": f.leaseMS(t),
	}
}

func (f *fakeDispatcher) serveOperator(w http.ResponseWriter, r *http.Request, body []byte) {
	switch route, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/"); {
	case route == "pools" && r.Method == http.MethodPut:
		f.pool = &operators.Pool{}
		_ = json.Unmarshal(body, f.pool)
		writeJSON(w, http.StatusOK, f.pool)
	case route == "pools" && f.pool == nil:
		writeJSON(w, http.StatusNotFound, map[string]any{"code": "not_found"})
	case route == "pools":
		writeJSON(w, http.StatusOK, f.pool)
	case route == "batches" && r.Method == http.MethodPost:
		var b operators.NewBatch
		_ = json.Unmarshal(body, &b)
		f.batchSizes = append(f.batchSizes, int64(len(b.Tasks)))
		id := int64(len(f.batchSizes))
		for _, n := range b.Tasks {
			f.tasks = append(f.tasks, &fakeTask{
				id: int64(len(f.tasks) + 1), batch: id, device: n.Device, payload: n.Payload,
				state: "pending", tokens: map[int64]string{},
			})
		}
		writeJSON(w, http.StatusCreated, map[string]any{"id": id, "tasks": len(b.Tasks)})
	case route == "batches":
		id, _ := strconv.ParseInt(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], 10, 64)
		f.reap()
		counts := map[string]int64{}
		for _, t := range f.tasks {
			if t.batch == id && t.id == f.loseTask {
				counts["succeeded"]++
			} else if t.batch == id {
				counts[t.state]++
			}
		}
		writeJSON(w, http.StatusOK, operators.Batch{ID: id, Total: f.batchSizes[id-1], Counts: counts})
	case route == "tasks":
		f.listTasks(w, r)
	case route == "devices":
		f.register(w, r, body)
	default:
		writeJSON(w, http.StatusNotFound, map[string]any{"code": "not_found"})
	}
}

// listTasks returns a list of tasks in pages of 7 tasks, so that the client must read several pages.
func (f *fakeDispatcher) listTasks(w http.ResponseWriter, r *http.Request) {
	batch, _ := strconv.ParseInt(r.URL.Query().Get("batch"), 10, 64)
	from, _ := strconv.Atoi(r.URL.Query().Get("page_token"))
	tasks := []map[string]any{}
	for i := from; i < len(f.tasks); i++ {
		t := f.tasks[i]
		if t.batch != batch || t.id == f.hideTask {
			continue
		}
		output := append(json.RawMessage(nil), t.output...)
		if t.id == f.alterOutput {
			output[len(output)-2] = ' ' // still valid JSON, but not the bytes of the device
			output = append(output[:len(output)-2], []byte(` "}`)...)
		}
		tasks = append(tasks, map[string]any{"id": t.id, "device": t.device, "state": t.state, "output": rawOrNil(output)})
		if len(tasks) == 7 {
			writeJSON(w, http.StatusOK, map[string]any{"tasks": tasks, "next_page_token": fmt.Sprint(i + 1)})
			return
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"tasks": tasks})
}

func rawOrNil(b json.RawMessage) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

package api_test

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestEventsAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(newBatchBody)
		g := b.ReportUntilGranted("d-1")
		b.SendReport("d-1", g.Result("succeeded", "")).Expect(200)
		b.SendReport("d-1", g.Result("succeeded", "")).Expect(200) // a duplicate result is not an event
		kinds := func(query string) (kinds []string) {
			b.Helper()
			for _, e := range listField(b.Get("/v1/events?order=oldest&"+query).Expect(200).Object(), "events") {
				kind, _ := asObject(e)["kind"].(string)
				kinds = append(kinds, kind)
			}
			return kinds
		}
		for query, want := range map[string][]string{
			"":                              {"pool.created", "batch.created", "device.created", "task.granted", "task.succeeded"},
			"device=d-1":                    {"device.created", "task.granted", "task.succeeded"},
			fmt.Sprintf("task=%d", g.ID):    {"task.granted", "task.succeeded"},
			"batch=1&kind=batch.created":    {"batch.created"},
			"pool=p&actor=bootstrap":        {"pool.created", "batch.created"},
			"actor=d-1&kind=task.succeeded": {"task.succeeded"},
			"kind=nothing":                  nil,
		} {
			if diff := cmp.Diff(want, kinds(query)); diff != "" {
				b.Errorf("%s: %s", query, diff)
			}
		}
		if diff := cmp.Diff([]string{"5", "4", "3", "2", "1"}, b.readPages("/v1/events", "events", "id")); diff != "" {
			b.Error(diff)
		}
		if diff := cmp.Diff([]string{"1", "2", "3", "4", "5"}, b.readPages("/v1/events?order=oldest", "events", "id")); diff != "" {
			b.Error(diff)
		}
		if rows := b.getWithAccept("/v1/events?order=oldest", csvType).Expect(200).CSVRows(); len(rows) != 6 || rows[4][2] != "task.granted" || rows[4][9] != "slot=0" {
			b.Errorf("%q", rows)
		}
		now := time.Now().UTC()
		hour := func(n int) string { return now.Add(time.Duration(n) * time.Hour).Format(time.RFC3339) }
		for query, want := range map[string]int{
			"since=" + hour(-1): 5, "since=" + hour(1): 0, "until=" + hour(-1): 0, "until=" + hour(1): 5, "since=" + hour(-1) + "&until=" + hour(1) + "&device=d-1": 3,
		} {
			if got := kinds(query); len(got) != want {
				b.Errorf("%s: %v, want %d", query, got, want)
			}
		}
		b.Get("/v1/events?since="+hour(1)+"&until="+hour(-1)).ExpectProblem(422, "invalid_field")
		b.Get("/v1/events?since=yesterday").ExpectProblem(422, "invalid_field")
		b.Get("/v1/events?device=a/b").ExpectProblem(400, "invalid_device_id")
		b.Get("/v1/events?order=any").ExpectProblem(422, "invalid_field")
	})
}

// eventStream reads a live stream of events.
type eventStream struct {
	b        *testAPI
	lines    *bufio.Scanner
	response *http.Response
}

func (b *testAPI) openEventStream(path, token, lastID string) *eventStream {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, b.URL+path, http.NoBody)
	b.Must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		request.Header.Set("Last-Event-ID", lastID)
	}
	response, err := http.DefaultClient.Do(request)
	b.Must(err)
	b.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		b.Fatalf("%d %v", response.StatusCode, response.Header)
	}
	return &eventStream{b: b, lines: bufio.NewScanner(response.Body), response: response}
}

// nextEvent returns the next event of the stream that has data. If the stream has ended, it returns nil.
func (l *eventStream) nextEvent() map[string]any {
	l.b.Helper()
	id := ""
	for l.lines.Scan() {
		if text, ok := strings.CutPrefix(l.lines.Text(), "id: "); ok {
			id = text
		}
		if text, ok := strings.CutPrefix(l.lines.Text(), "data: "); ok {
			var event map[string]any
			if err := json.Unmarshal([]byte(text), &event); err != nil || fmt.Sprint(event["id"]) != id {
				l.b.Fatalf("event %s with id %s: %v", text, id, err)
			}
			return event
		}
	}
	return nil
}

// startID waits for the id with which a stream begins that was opened without Last-Event-ID, and returns it.
func (l *eventStream) startID() string {
	l.b.Helper()
	for l.lines.Scan() {
		if text, ok := strings.CutPrefix(l.lines.Text(), "id: "); ok {
			return text
		}
	}
	l.b.Fatal("the stream ended")
	return ""
}

func TestEventsAreStreamedAndResumed(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		stream := b.openEventStream("/v1/events", adminToken, "")
		if id := stream.startID(); id != "1" {
			b.Errorf("began at %s", id)
		}
		only := b.openEventStream("/v1/events?kind=task.granted", adminToken, "")
		only.startID()
		b.CreateBatch(newBatchBody)
		b.ReportUntilGranted("d-1")
		var kinds []string
		for range 3 {
			kind, _ := stream.nextEvent()["kind"].(string)
			kinds = append(kinds, kind)
		}
		if diff := cmp.Diff([]string{"batch.created", "device.created", "task.granted"}, kinds); diff != "" {
			b.Error(diff)
		}
		if e := only.nextEvent(); e["kind"] != "task.granted" || e["device"] != "d-1" {
			b.Errorf("filtered: %v", e)
		}
		again := b.openEventStream("/v1/events", adminToken, "2")
		for want := 3.0; want <= 4; want++ {
			if e := again.nextEvent(); e["id"] != want {
				b.Errorf("resumed: %v, want id %v", e, want)
			}
		}
	})
}

// An event of an open transaction has a lower id than an event that another transaction commits before it, because
// ids are assigned before the commit. The stream must send both events, in the order of their ids.
func TestALateCommitLeavesNoGap(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	stream := b.openEventStream("/v1/events", adminToken, "0")
	const record = `INSERT INTO events (at, kind) VALUES (now(), $1)`
	db := b.openLedgerDB()
	held, err := db.BeginTx(t.Context(), nil)
	b.Must(err)
	defer held.Rollback()
	for range 3 { // several transactions in between, each committed at once
		_, err := held.ExecContext(t.Context(), record, "held")
		must.Succeed(t, err)
		_, err = db.ExecContext(t.Context(), record, "at once")
		must.Succeed(t, err)
	}
	other := b.openEventStream("/v1/events?kind=at%20once", adminToken, "0")
	got := make(chan string, 1)
	go func() {
		kind, _ := other.nextEvent()["kind"].(string)
		got <- kind
	}()
	select {
	case kind := <-got:
		t.Fatalf("%s was sent below an id that can still appear", kind)
	case <-time.After(2 * time.Second): // long enough for several polls
	}
	b.Must(held.Commit())
	var ids []float64
	for range 6 {
		id, _ := stream.nextEvent()["id"].(float64)
		ids = append(ids, id)
	}
	if want := []float64{1, 2, 3, 4, 5, 6}; !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
	if kind := <-got; kind != "at once" {
		t.Errorf("then it is sent: %q", kind)
	}
}

func TestALiveStreamEndsWithItsTokenAndItsServer(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	made := b.Call("POST", "/v1/tokens", adminToken, `{"name":"n","role":"viewer"}`).Expect(201).Object()
	secret, _ := made["token"].(string)
	stream := b.openEventStream("/v1/events", secret, "")
	stream.startID()
	b.Call("DELETE", fmt.Sprintf("/v1/tokens/%v", made["id"]), adminToken, nil).Expect(200)
	for stream.nextEvent() != nil { // the event of the revocation itself may still arrive
	}
	stream = b.openEventStream("/v1/events", adminToken, "")
	stream.startID()
	b.API.FailReadiness()
	for stream.nextEvent() != nil { // until the stream ends
	}
}

// openLedgerDB opens the database of the ledger directly, as another program would.
func (b *testAPI) openLedgerDB() *sql.DB {
	b.Helper()
	db, err := sql.Open("postgres", b.DSN)
	b.Must(err)
	b.Cleanup(func() { _ = db.Close() })
	return db
}

// One token opens many streams and exports. It gets only a part of the maximum number that a replica serves, so that other tokens get some
// too.
func TestOneTokenHasAShareOfTheStreams(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	viewer, _ := b.Call("POST", "/v1/tokens", adminToken, `{"name":"wall","role":"viewer"}`).Expect(201).Object()["token"].(string)
	open := func(token string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+"/v1/events", nil)
		b.Must(err)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Accept", "text/event-stream")
		response, err := http.DefaultTransport.RoundTrip(r)
		b.Must(err)
		t.Cleanup(func() { response.Body.Close() })
		return response.StatusCode
	}
	for n := range 11 {
		if got, want := open(viewer), map[bool]int{true: 200, false: 503}[n < 10]; got != want {
			t.Fatalf("stream %d of the viewer: %d, want %d", n+1, got, want)
		}
	}
	if got := open(adminToken); got != 200 {
		t.Errorf("the admin's stream: %d", got)
	}
}

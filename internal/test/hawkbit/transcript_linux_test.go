package hawkbit

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

var update = flag.Bool("update", false, "write the requests of swupdate into testdata/swupdate.txt") //nolint:gochecknoglobals // a flag of the test

// transcriptFile has the requests of swupdate for one update, with the statuses of the answers.
const transcriptFile = "testdata/swupdate.txt"

// recorder is a proxy before the dispatcher that records the requests of one device.
type recorder struct {
	*httptest.Server

	mu    sync.Mutex
	lines []string
}

// startRecorder starts a proxy before the dispatcher of f.
func startRecorder(f *fleet) *recorder {
	f.Helper()
	r, proxy := &recorder{}, newProxy(f.T, f.dev.URL)
	r.Server = httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		request.Body = io.NopCloser(bytes.NewReader(body))
		seen := httptest.NewRecorder()
		proxy.ServeHTTP(seen, request)
		maps.Copy(response.Header(), seen.Header())
		response.WriteHeader(seen.Code)
		_, _ = response.Write(seen.Body.Bytes())
		r.add(request, body, seen)
	}))
	f.Cleanup(r.Close)
	return r
}

// add records one request. It omits polls whose answer has no link to a deployment, because their number depends on the speed of the
// machine. It also omits attributes, because the attributes of the two devices differ.
func (r *recorder) add(request *http.Request, body []byte, answer *httptest.ResponseRecorder) {
	_, resource, _ := strings.Cut(request.URL.Path, "/controller/v1/")
	_, resource, _ = strings.Cut(resource, "/")
	if resource == "configData" || resource == "" && !strings.Contains(answer.Body.String(), "deploymentBase") {
		return
	}
	var feedback struct {
		Status struct {
			Execution string `json:"execution"`
			Result    struct {
				Finished string `json:"finished"`
			} `json:"result"`
		} `json:"status"`
	}
	_ = json.Unmarshal(body, &feedback)
	said := strings.TrimSpace(feedback.Status.Execution + " " + feedback.Status.Result.Finished)
	line := strings.Join(strings.Fields(fmt.Sprintf("%s /%s %s -> %d", request.Method, regexp.MustCompile(`[0-9]+`).ReplaceAllString(resource, "ACTION"), said, answer.Code)), " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	for _, width := range []int{1, 2} { // repeated progress, and a repeated poll with its deployment, count once
		if end := len(r.lines); end >= 2*width && slices.Equal(r.lines[end-width:], r.lines[end-2*width:end-width]) {
			r.lines = r.lines[:end-width]
		}
	}
}

// text returns the recorded requests, one per line.
func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n") + "\n"
}

// hasEnd reports whether the end of the update is recorded. A request is recorded after its answer was sent.
func (r *recorder) hasEnd() bool { return strings.Contains(r.text(), "closed") }

// TestTheRequestsOfSwupdate records the requests of swupdate for one update and its restart, and compares them with the transcript. The
// simulated device must send the same requests in the same order, because it replaces swupdate in the tests under load.
func TestTheRequestsOfSwupdate(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a busy machine changes the requests of swupdate: runs with make test-long")
	}
	f := startFleet(t, 1, time.Minute)
	recorded := startRecorder(f)
	d := f.newDevice("real")
	d.server = recorded.URL
	f.artifacts.serve("real", time.Second/5, false, d.inside)
	f.queueBatch("real")
	d.boot(0)
	f.await("the second progress of swupdate", func() bool { return strings.Count(recorded.text(), "proceeding") == 2 })
	d.succeed()
	f.await("the record of the last feedback", recorded.hasEnd)
	d.halt()
	if f.restarts.Load() > 0 {
		t.Skip("swupdate ended itself and began again: the transcript is of no use")
	}
	if *update {
		must.Succeed(t, os.WriteFile(transcriptFile, []byte(recorded.text()), 0o600))
	}
	want, err := os.ReadFile(transcriptFile)
	must.Succeed(t, err)
	if got := recorded.text(); got != string(want) {
		t.Errorf("swupdate sent\n%swant\n%s", got, want)
	}
	simulated := startRecorder(f)
	external, err := simulator.NewExternal(t.Context(), "", 1, nil, nil)
	must.Succeed(t, err)
	defer external.Close()
	f.queueBatch("simulated")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	one := &Device{
		URL: simulated.URL + "/DEFAULT", ID: "simulated", Token: f.dev.FleetToken, ExternalAddr: external.Addr(), Work: 100 * time.Millisecond, Patience: 5 * time.Second, Client: http.DefaultClient,
	}
	go one.Run(ctx)
	f.await("the simulated update", func() bool { return f.taskState("simulated") == "succeeded" && simulated.hasEnd() })
	if got := simulated.text(); got != string(want) {
		t.Errorf("the simulated device sent\n%swant\n%s", got, want)
	}
}

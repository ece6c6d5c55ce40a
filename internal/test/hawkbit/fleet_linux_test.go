package hawkbit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// fleet is an installation with instances of swupdate in one pool.
type fleet struct {
	*testing.T

	dev       *app.DevServer
	proxy     *http.Server // hands requests to dev
	artifacts *artifactServer
	image     image
	program   string
	capacity  int
	lease     time.Duration
	log       *await.Output
	restarts  atomic.Int64 // how often an instance ended itself and was started again
}

// skipOrFail skips the test because something is missing. Under CI it fails.
func skipOrFail(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// startFleet starts `dispatcher dev` in this process, and the artifact server.
func startFleet(t *testing.T, capacity int, lease time.Duration) *fleet {
	t.Helper()
	program, err := exec.LookPath("swupdate")
	if err != nil {
		skipOrFail(t, "swupdate is missing: make deps")
	}
	f := &fleet{T: t, program: program, image: newImage(t, 1<<20), capacity: capacity, lease: lease, log: &await.Output{}}
	f.startDispatcher()
	f.proxy = &http.Server{Handler: newProxy(t, f.dev.URL), ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { _ = f.proxy.Close() })
	f.artifacts = startArtifacts(t, f.image)
	f.callOperatorAPI("PUT", "/v1/pools/p", fmt.Sprintf(`{"capacity":%d,"lease_ms":%d}`, capacity, lease.Milliseconds()))
	return f
}

func (f *fleet) startDispatcher() {
	f.Helper()
	var err error
	f.dev, err = app.NewDev(f.Context(), app.DevOptions{
		Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", Data: f.TempDir(), ReportPeriod: time.Second, Version: "test",
		Logger: slog.New(slog.NewTextHandler(f.log, nil)),
	})
	must.Succeed(f, err)
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- f.dev.Run(ctx, func() { close(started) }) }()
	<-started
	f.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.Errorf("dispatcher dev: %v", err)
		}
	})
}

// newProxy returns a handler that hands each request to the server at target.
func newProxy(t *testing.T, target string) http.Handler {
	t.Helper()
	address, err := url.Parse(target)
	must.Succeed(t, err)
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(address)
			p.Out.Host = p.In.Host // the links in the answers lead to the proxy
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // a client that is killed breaks its requests off
	}
}

func (f *fleet) callOperatorAPI(method, path, body string) string {
	f.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(f.Context()), method, f.dev.URL+path, strings.NewReader(body))
	must.Succeed(f, err)
	request.Header.Set("Authorization", "Bearer "+f.dev.AdminToken)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	must.Succeed(f, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode/100 != 2 {
		f.Errorf("%s %s: %s %s (%v)", method, path, response.Status, content, err)
	}
	return string(content)
}

// queueBatch queues the update for a device, as a batch of its own. It returns the batch.
func (f *fleet) queueBatch(device string) (batch int64) {
	f.Helper()
	var made struct {
		ID int64 `json:"id"`
	}
	answer := f.callOperatorAPI("POST", "/v1/batches", fmt.Sprintf(`{"pool":"p","max_attempts":100,"retry_backoff_ms":0,"devices":[%q],"payload":{"deployment":{"chunks":[{"part":"os","version":"1","name":"image","artifacts":[
		{"filename":"image.swu","size":%d,"hashes":{"sha1":%q},"url":"%s/%s/image.swu"}]}]}}}`, device, len(f.image.content), f.image.sha1Text(), f.artifacts.url, device))
	if err := json.Unmarshal([]byte(answer), &made); err != nil {
		f.Error(err)
	}
	return made.ID
}

// taskState returns the state of the only task of a device.
func (f *fleet) taskState(device string) string {
	f.Helper()
	var list struct {
		Tasks []struct {
			State string `json:"state"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal([]byte(f.callOperatorAPI("GET", "/v1/tasks?device="+device, "")), &list); err != nil || len(list.Tasks) != 1 {
		f.Errorf("tasks of %s: %+v (%v)", device, list, err)
		return ""
	}
	return list.Tasks[0].State
}

func (f *fleet) events(device, kind string) []event {
	f.Helper()
	var list struct {
		Events []event `json:"events"`
	}
	if err := json.Unmarshal([]byte(f.callOperatorAPI("GET", "/v1/events?device="+device+"&kind="+kind, "")), &list); err != nil {
		f.Error(err)
	}
	return list.Events
}

// event is the part of an event that the tests read.
type event struct {
	Detail string `json:"detail"`
}

// await waits until ok returns true. await waits as long as the test may run, because a busy machine is no mistake.
// await returns false if ok never returned true. The text what describes the condition in the error.
func (f *fleet) await(what string, ok func() bool) bool {
	f.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	deadline, isLimited := f.Deadline()
	for ; !isLimited || time.Until(deadline) > 20*time.Second; <-tick.C {
		if ok() {
			return true
		}
	}
	f.Errorf("never came: %s", what)
	return false
}

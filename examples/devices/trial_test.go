package devices_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	lease       = 3 * time.Second  // of the pools; a device gets four fifths of it
	cancelLease = 20 * time.Second // of a task that is cancelled, so that it is not stopped by the end of its lease
	longWork    = 3.5              // seconds: longer than a lease
	period      = "1"              // seconds between reports
)

// patience returns how long a trial may take. It is longer in the long tests, where some messages get no answer.
func patience() time.Duration {
	if testing.Short() {
		return 3 * time.Minute
	}
	return 10 * time.Minute
}

var program servers.Program //nolint:gochecknoglobals // built once

// devServer is a `dispatcher dev`, which all programs of the kit use.
type devServer struct {
	url, mqtt, fleetToken string // fleetToken is the path of the file
	admin                 *operators.Client
}

// startServer starts a dispatcher whose ledger and tokens are in the folder data.
func startServer(t *testing.T, data string) devServer {
	t.Helper()
	addr, mqtt := servers.FreeAddr(t), servers.FreeAddr(t)
	servers.StartProcess(t, func() *exec.Cmd {
		cmd := exec.Command(program.Path(t), "dev", "--listen", addr, "--mqtt-listen", mqtt, "--data", data, "--report-period", period+"s")
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+data)
		return cmd
	}, func() error {
		response, err := http.Get("http://" + addr + "/readyz")
		if err != nil {
			return err
		}
		if response.Body.Close(); response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	token, err := os.ReadFile(filepath.Join(data, "admin-token"))
	must.Succeed(t, err)
	admin, err := operators.New(operators.Config{URL: "http://" + addr, Token: strings.TrimSpace(string(token))})
	must.Succeed(t, err)
	return devServer{url: "http://" + addr, mqtt: mqtt, fleetToken: filepath.Join(data, "fleet-token"), admin: admin}
}

// trial runs two devices of one program on a pool with one slot, with the faults of one seed.
type trial struct {
	*testing.T
	server  devServer
	pool    string
	seed    uint64
	traffic *traffic
	faults  *faults
	judge   *judge
	devices map[string]*deviceProcess

	mu    sync.Mutex
	kinds map[int64]string // of the tasks
}

func newTrial(t *testing.T, server devServer, program deviceProgram, command []string, seed uint64) *trial {
	t.Helper()
	pool := fmt.Sprintf("%s-%d", program.name, seed)
	r := &trial{T: t, server: server, pool: pool, seed: seed, traffic: newTraffic(), devices: map[string]*deviceProcess{}, kinds: map[int64]string{}}
	names := []string{pool + "-a", pool + "-b"}
	r.faults = newFaults(seed, program.transport, r.traffic, names)
	r.judge = newJudge(t, r.onEnter, r.onLeave)
	var certificate *tls.Config // nil: without TLS
	var more []string
	url := program.transport
	if seed%2 == 1 {
		var path string
		certificate, path = newCertificate(t)
		url, more = url+"s", []string{"--ca-file", path}
	}
	if program.transport == overHTTP {
		url += "://" + newHTTPProxy(r, server.url, certificate)
	} else {
		url += "://" + newMQTTProxy(r, server.mqtt, certificate)
	}
	dir := t.TempDir()
	for _, name := range names {
		r.devices[name] = &deviceProcess{
			command:   program.start(command, url, name, server.fleetToken, filepath.Join(dir, name), more...),
			onFailure: func(problem string) { r.traffic.addViolation("%s %s", name, problem) },
		}
	}
	return r
}

// run queues the tasks, starts the devices, and waits until everything has ended. Then it checks what happened.
func (r *trial) run() {
	r.queueAllTasks()
	began := time.Now()
	for _, d := range r.devices {
		d.start()
	}
	r.Cleanup(r.endDevices)
	ctx, cancel := context.WithTimeout(r.Context(), patience())
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	missing := "everything"
	for missing != "" {
		select {
		case <-tick.C:
			missing = r.missingText()
		case <-ctx.Done():
			r.Errorf("after %s: %s", patience(), missing)
			missing = ""
		}
	}
	r.endDevices()
	r.Logf("%d stays in %s", len(r.judge.stays()), time.Since(began).Round(time.Millisecond))
	r.check()
	if r.Failed() || testing.Verbose() {
		r.Logf("seed %d:\n%s", r.seed, strings.Join(r.traffic.log, "\n"))
		for name, d := range r.devices {
			r.Logf("%s said:\n%s", name, d.outputEnd())
		}
	}
}

func (r *trial) endDevices() {
	for name, d := range r.devices {
		d.end()
		r.faults.endCut(name, grantKey{})
	}
}

// Kinds of tasks.
const (
	kindShort    = "short"    // ends within its lease
	kindLong     = "long"     // needs renewals
	kindFailing  = "failing"  // fails, and is tried twice
	kindLarge    = "large"    // has an output that the server drops
	kindTooLarge = "toolarge" // has an output that makes the report too large
	kindCancel   = "cancel"   // is cancelled while it runs
)

const failingAttempts = 2

func (r *trial) queueAllTasks() {
	r.Helper()
	settings := operators.PoolSettings{Capacity: 1, LeaseMS: new(lease.Milliseconds())}
	_, err := r.server.admin.Pools.Put(r.Context(), r.pool, settings)
	must.Succeed(r, err)
	for name := range r.devices {
		r.queueTask(name, kindShort, `"seconds":0.4`)
		r.queueTask(name, kindLong, fmt.Sprintf(`"seconds":%v`, longWork))
	}
	first, second := r.pool+"-a", r.pool+"-b"
	r.queueTask(first, kindLarge, `"seconds":0.4,"output_bytes":40000`)
	r.queueTask(first, kindCancel, `"seconds":60`)
	r.queueTask(second, kindTooLarge, `"seconds":0.4,"output_bytes":100000`)
	r.queueTask(second, kindFailing, `"seconds":0.4,"fail":"broken"`)
}

func (r *trial) queueTask(device, kind, payload string) {
	r.Helper()
	attempts, leaseMS := 100, int64(0)
	switch kind {
	case kindFailing:
		attempts = failingAttempts
	case kindCancel:
		leaseMS = cancelLease.Milliseconds()
	}
	made, err := r.server.admin.Batches.Create(r.Context(), operators.NewBatch{
		Pool: r.pool, Kind: kind, Devices: []string{device}, MaxAttempts: attempts, RetryBackoffMS: new(int64(10)), LeaseMS: leaseMS,
		Payload: json.RawMessage(fmt.Sprintf(`{"system":%q,%s}`, r.judge.addr, payload)),
	}, operators.QueueMode{})
	must.Succeed(r, err)
	for task, err := range r.server.admin.Tasks.List(r.Context(), operators.TaskFilter{Batch: made.ID}) {
		must.Succeed(r, err)
		r.mu.Lock()
		r.kinds[task.ID] = kind
		r.mu.Unlock()
	}
}

func (r *trial) taskKind(task int64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds[task]
}

// missingText returns what the trial still waits for, or "". If a device has no task left for its next step, missing queues one.
func (r *trial) missingText() string {
	open := map[string]int{}
	for task, err := range r.server.admin.Tasks.List(r.Context(), operators.TaskFilter{Pool: r.pool}) {
		if err != nil {
			return err.Error()
		}
		if task.IsOpen() {
			open[task.Device]++
		}
	}
	for name := range r.devices {
		next := r.faults.nextStep(name)
		if next != "" && !slices.Contains([]step{restartWhileIdle, wakeUp}, next) && open[name] == 0 {
			kind, seconds := kindShort, 0.4
			if next == isolate {
				kind, seconds = kindLong, longWork
			}
			r.queueTask(name, kind, fmt.Sprintf(`"seconds":%v`, seconds))
		}
		if next != "" {
			return name + ": " + string(next)
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("open tasks: %v", open)
	}
	if unacked := r.traffic.unackedResults(); len(unacked) > 0 {
		return fmt.Sprintf("results without an acknowledgement: %v", unacked)
	}
	pool, err := r.server.admin.Pools.Slots(r.Context(), r.pool)
	if err != nil {
		return err.Error()
	}
	for _, slot := range pool.Slots {
		if slot.State == "held" {
			return "a slot is held by " + slot.Device
		}
	}
	return ""
}

// onEnter is called when a device enters the external system.
func (r *trial) onEnter(s stay) {
	r.traffic.addNote("%s enters with %v (%s)", s.device, s.grant, r.taskKind(s.grant.task))
	if r.devices[s.device] == nil {
		r.traffic.addViolation("the external system read the device %s", s.device)
		return
	}
	if r.taskKind(s.grant.task) == kindCancel {
		_, _ = r.server.admin.Tasks.Cancel(r.Context(), s.grant.task) // a conflict: it was cancelled before
	}
	if r.faults.takeStep(s.device, killInside) {
		r.kill(s.device)
	}
}

// onLeave is called when a device has left the external system.
func (r *trial) onLeave(s stay) {
	r.traffic.addNote("%s leaves with %v after %s", s.device, s.grant, s.left.Sub(s.entered))
	if r.devices[s.device] == nil {
		return
	}
	r.faults.endCut(s.device, s.grant)
	if r.faults.takeAfterWork(s.device, killOnLeave, s.entered) {
		r.kill(s.device)
	}
}

// kill kills a device, which starts again.
func (r *trial) kill(device string) {
	r.traffic.addNote("%s is killed", device)
	r.faults.recordKill(device)
	r.devices[device].kill()
	r.faults.recordKill(device) // also what happened meanwhile
}

// afterDelivery does what the verdict plans for the time after the delivery of a reply.
func (r *trial) afterDelivery(device string, v verdict) {
	if v.kills {
		r.kill(device)
	}
	if v.cuts {
		r.faults.cutConnection(device)
	}
}

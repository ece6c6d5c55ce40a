package hawkbit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/app"
)

// patience is the maximum time for one step of a test.
const patience = 3 * time.Minute

// fleet is an installation with instances of swupdate.
type fleet struct {
	*testing.T

	dev       *app.DevServer
	artifacts *artifactServer
	image     image
	program   string
	lease     time.Duration
	log       *logBuffer
}

// logBuffer keeps the log of the dispatcher.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// startFleet starts `dispatcher dev` in this process, and the artifact server. Each download takes this number of seconds.
func startFleet(t *testing.T, capacity int, lease time.Duration, seconds func(device string) float64) *fleet {
	t.Helper()
	if testing.Short() {
		t.Skip("swupdate needs 10 to 20 s for an update and its restarts: runs with make test-long; internal/app tests the same requests")
	}
	program, err := exec.LookPath("swupdate")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("swupdate is missing: make deps")
		}
		t.Skip("swupdate is missing: make deps")
	}
	f := &fleet{T: t, program: program, image: newImage(t, 256<<10), lease: lease, log: &logBuffer{}}
	f.dev, err = app.NewDev(t.Context(), app.DevOptions{
		Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", Data: t.TempDir(), ReportPeriod: time.Second, Version: "test",
		Logger: slog.New(slog.NewTextHandler(f.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- f.dev.Run(ctx, func() { close(started) }) }()
	<-started
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("dispatcher dev: %v", err)
		}
	})
	f.artifacts = startArtifacts(t, f.image, seconds)
	f.operate("PUT", "/v1/pools/p", fmt.Sprintf(`{"capacity":%d,"lease_ms":%d}`, capacity, lease.Milliseconds()))
	return f
}

// operate calls the operators' API and returns the answer.
func (f *fleet) operate(method, path, body string) string {
	f.Helper()
	request, err := http.NewRequestWithContext(context.WithoutCancel(f.Context()), method, f.dev.URL+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+f.dev.AdminToken)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		f.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode/100 != 2 {
		f.Errorf("%s %s: %s %s (%v)", method, path, response.Status, content, err)
	}
	return string(content)
}

// queue queues the update for a device, as a batch of its own.
func (f *fleet) queue(device string) {
	f.Helper()
	f.operate("POST", "/v1/batches", fmt.Sprintf(`{"pool":"p","max_attempts":5,"retry_backoff_ms":0,"devices":[%q],"payload":{"deployment":{"chunks":[{"part":"os","version":"1","name":"image","artifacts":[
		{"filename":"image.swu","size":%d,"hashes":{"sha1":%q},"url":"%s/%s/image.swu"}]}]}}}`, device, len(f.image.content), f.image.sha1Text(), f.artifacts.URL, device))
}

// taskState returns the state of the only task of a device.
func (f *fleet) taskState(device string) string {
	f.Helper()
	var list struct {
		Tasks []struct {
			State string `json:"state"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal([]byte(f.operate("GET", "/v1/tasks?device="+device, "")), &list); err != nil || len(list.Tasks) != 1 {
		f.Errorf("tasks of %s: %+v (%v)", device, list, err)
		return ""
	}
	return list.Tasks[0].State
}

// await waits until ok returns true. what is for the error.
func (f *fleet) await(what string, ok func() bool) bool {
	f.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return true
		}
	}
	f.Errorf("never came: %s", what)
	return false
}

// device is one device: a folder, and at most one process of swupdate.
type device struct {
	*fleet

	id      string
	dir     string
	process *exec.Cmd
	ended   chan struct{}
	inside  chan struct{} // gets an element when a download begins
	server  string        // address of the dispatcher
}

// newDevice returns a device whose program does not run yet.
func (f *fleet) newDevice(id string) *device {
	f.Helper()
	d := &device{fleet: f, id: id, dir: f.TempDir(), server: f.dev.URL, inside: make(chan struct{}, 100)}
	f.Cleanup(func() {
		if d.process != nil {
			d.halt()
		}
	})
	return d
}

// boot starts swupdate. confirm is the state of the update that it reports first: 2 (success), 3 (failure), or 0 for none.
func (d *device) boot(confirm int) {
	d.Helper()
	for _, name := range []string{"tmp", "run"} {
		_ = os.RemoveAll(filepath.Join(d.dir, name))
		if err := os.Mkdir(filepath.Join(d.dir, name), 0o700); err != nil {
			d.Error(err)
		}
	}
	suricatta := fmt.Sprintf("-t DEFAULT -u %s -i %s -g %s -p 1 -w 1 -r 5 -m 1 --disable-token-for-dwl", d.server, d.id, d.dev.FleetToken)
	if confirm > 0 {
		suricatta += " -c " + strconv.Itoa(confirm)
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.Fatal(err)
	}
	d.process = exec.Command(d.program, "-l", "5", "-M", "-m", "-H", "board:1.0", "-k", d.image.key, "-p", "touch "+d.marker(), "-u", suricatta)
	d.process.Dir, d.process.Stdout, d.process.Stderr = filepath.Join(d.dir, "run"), log, log
	d.process.Env = append(os.Environ(), "TMPDIR="+filepath.Join(d.dir, "tmp"))
	d.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.process.Start(); err != nil {
		d.Fatal(err)
	}
	d.ended = make(chan struct{})
	go func(p *exec.Cmd, ended chan struct{}) {
		_ = p.Wait()
		close(ended)
		_ = log.Close()
	}(d.process, d.ended)
}

// marker is the file that swupdate creates after an installation.
func (d *device) marker() string { return filepath.Join(d.dir, "installed") }

// signal sends a signal to all processes of swupdate.
func (d *device) signal(signal syscall.Signal) { _ = syscall.Kill(-d.process.Process.Pid, signal) }

// halt ends swupdate at once, as a power failure does.
func (d *device) halt() {
	d.signal(syscall.SIGKILL)
	<-d.ended
}

// awaitInside waits until a download of the device begins.
func (d *device) awaitInside() {
	d.Helper()
	select {
	case <-d.inside:
	case <-time.After(patience):
		d.Errorf("%s: no download", d.id)
	}
}

// awaitInstalled waits until swupdate has installed the update.
func (d *device) awaitInstalled() {
	d.Helper()
	d.await(d.id+" installed", func() bool {
		_, err := os.Stat(d.marker())
		return err == nil
	})
}

// awaitState waits until the task of the device has a state.
func (d *device) awaitState(want string) {
	d.Helper()
	last := ""
	if !d.await("the state "+want+" of "+d.id, func() bool {
		last = d.taskState(d.id)
		return last == want
	}) {
		d.Errorf("the state is %s; the end of the log:\n%s", last, d.logEnd())
	}
}

// logEnd returns the end of the log of swupdate.
func (d *device) logEnd() string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
	return string(text[max(0, len(text)-4000):])
}

// fault is what happens to a device during its update.
type fault struct {
	name string
	want string // state of the task at the end
	// run carries the update out, from before the first boot until the end was reported.
	run func(d *device)
}

// finish boots the device after each installation, as a device does, until it has reported the end. If the end of the lease left the device
// without an action to report, it installs the update again.
func (d *device) finish(confirm int, want string) {
	d.Helper()
	d.await(d.id+" is "+want, func() bool {
		select {
		case <-d.ended: // it ends itself after some errors; a device starts it again
			d.boot(0)
		default:
		}
		if os.Remove(d.marker()) == nil {
			d.halt()
			d.boot(confirm)
		}
		return d.taskState(d.id) == want
	})
	d.halt()
}

// faults returns what happens to the devices, in turn.
func faults() []fault {
	return []fault{
		{"nothing", "succeeded", func(d *device) { d.boot(0); d.finish(2, "succeeded") }},
		{"killed in the download", "succeeded", func(d *device) {
			d.boot(0)
			d.awaitInside()
			d.halt()
			d.boot(0)
			d.finish(2, "succeeded")
		}},
		{"stopped for longer than the lease", "succeeded", func(d *device) {
			d.boot(0)
			d.awaitInside()
			d.signal(syscall.SIGSTOP)
			d.awaitLapse()
			d.signal(syscall.SIGCONT)
			d.await("the overrun of "+d.id, func() bool {
				return strings.Contains(d.operate("GET", "/v1/events?device="+d.id, ""), `"device.overrun"`)
			})
			d.finish(2, "succeeded")
		}},
		{"cancelled in the download", "cancelled", func(d *device) {
			d.boot(0)
			d.awaitInside()
			d.operate("POST", "/v1/batches/"+strconv.FormatInt(d.batch(), 10)+"/cancel", "")
			d.awaitState("cancelled")
			d.halt()
		}},
		{"a cut connection", "succeeded", func(d *device) { d.boot(0); d.finish(2, "succeeded") }},
		{"killed before the restart", "succeeded", func(d *device) {
			d.boot(0)
			d.awaitInstalled()
			d.halt()
			d.awaitLapse()
			d.boot(2)
			_ = os.Remove(d.marker())
			d.finish(2, "succeeded")
		}},
		{"a slow artifact", "succeeded", func(d *device) { d.boot(0); d.finish(2, "succeeded") }},
	}
}

// batch returns the batch of the device.
func (d *device) batch() int64 {
	d.Helper()
	var list struct {
		Tasks []struct {
			Batch int64 `json:"batch"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal([]byte(d.operate("GET", "/v1/tasks?device="+d.id, "")), &list); err != nil {
		d.Error(err)
	}
	return list.Tasks[0].Batch
}

// awaitLapse waits until the lease of the device has ended.
func (d *device) awaitLapse() {
	d.Helper()
	d.await("the end of the lease of "+d.id, func() bool { return strings.Contains(d.operate("GET", "/v1/events?device="+d.id, ""), `"task.lapsed"`) })
}

// TestSwupdate updates devices that run an unmodified swupdate through a pool, while they meet faults. The artifact server must never see
// more devices inside than the capacity and the devices that were stopped for longer than their lease; each of these is recorded.
func TestSwupdate(t *testing.T) {
	t.Parallel()
	const count, capacity, lease, plain = 20, 3, 8 * time.Second, 3.0
	all := faults()
	faultOf := func(i int) fault { return all[i%len(all)] }
	names := map[string]fault{}
	for i := range count {
		names[fmt.Sprintf("device-%02d", i)] = faultOf(i)
	}
	f := startFleet(t, capacity, lease, func(device string) float64 {
		switch names[device].name {
		case "a slow artifact":
			return 2.5 * lease.Seconds()
		case "cancelled in the download", "stopped for longer than the lease", "killed in the download":
			return lease.Seconds()
		}
		return plain
	})
	byID, stopped := map[string]*device{}, 0
	for id, fault := range names {
		byID[id] = f.newDevice(id)
		switch fault.name {
		case "a cut connection":
			f.artifacts.cuts[id] = 1
		case "stopped for longer than the lease":
			stopped++
		}
	}
	f.artifacts.started = func(device string) { byID[device].inside <- struct{}{} }
	for id := range names {
		f.queue(id)
	}
	var running sync.WaitGroup
	for id, fault := range names {
		running.Go(func() {
			fault.run(byID[id])
			if got := f.taskState(id); got != fault.want {
				t.Errorf("%s (%s): %s, want %s", id, fault.name, got, fault.want)
			}
		})
	}
	running.Wait()
	if inside := f.artifacts.highestInside(); inside > capacity+stopped || inside < 2 {
		t.Errorf("%d devices were inside, with %d slots and %d stopped devices", inside, capacity, stopped)
	}
	t.Logf("%d downloads, at most %d devices inside, %d slots, %d stopped devices", f.artifacts.all, f.artifacts.highestInside(), capacity, stopped)
	if t.Failed() {
		t.Logf("the log of the dispatcher:\n%s", f.log.String())
	}
}

// TestSwupdateReportsAFailure boots a device with -c 3 after its installation: the task fails with the text of swupdate.
func TestSwupdateReportsAFailure(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1, 20*time.Second, func(string) float64 { return 0.2 })
	d := f.newDevice("one")
	f.artifacts.started = func(string) {}
	f.operate("POST", "/v1/batches", fmt.Sprintf(`{"pool":"p","max_attempts":1,"devices":["one"],"payload":{"deployment":{"chunks":[{"part":"os","version":"1","name":"image","artifacts":[
		{"filename":"image.swu","size":%d,"hashes":{"sha1":%q},"url":"%s/one/image.swu"}]}]}}}`, len(f.image.content), f.image.sha1Text(), f.artifacts.URL))
	d.boot(0)
	d.finish(3, "failed")
}

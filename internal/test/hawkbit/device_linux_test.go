package hawkbit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// device is one device: a folder, and swupdate under an init system that restarts swupdate when it exits.
type device struct {
	*fleet

	id      string
	dir     string
	server  string        // address of the dispatcher
	network *network      // nil means the network of the test
	inside  chan struct{} // receives an element when a download begins
	batch   int64         // the batch of the update of the device
	halt    func()        // ends swupdate at once, as a power failure does
	pid     atomic.Int64  // the process of swupdate that was started last
}

// restartDelay is the time after which the init system starts swupdate again.
const restartDelay = time.Second

// newDevice returns a device whose program does not run yet. Its update is not queued yet.
func (f *fleet) newDevice(id string) *device {
	f.Helper()
	d := &device{fleet: f, id: id, dir: f.TempDir(), server: f.dev.URL, inside: make(chan struct{}, 1), halt: func() {}}
	f.Cleanup(func() { d.halt() })
	return d
}

// isolate moves the device into a network namespace, in which the dispatcher and the artifact server have the same addresses as outside.
func (d *device) isolate() {
	d.Helper()
	d.network = newNetwork(d.T)
	dispatcher, artifacts := d.network.listen(d.T, strings.TrimPrefix(d.server, "http://")), d.network.listen(d.T, d.artifacts.address)
	go func() { _ = d.proxy.Serve(dispatcher) }()
	go func() { _ = d.artifacts.Serve(artifacts) }()
}

// boot starts swupdate, and restarts it with the same arguments when it exits. confirm is the state of the update that swupdate reports
// first: 2 (success), 3 (failure), or 0 for none.
func (d *device) boot(confirm int) {
	ctx, cancel := context.WithCancel(context.Background())
	off := make(chan struct{})
	d.halt = func() { cancel(); <-off }
	go func() {
		defer close(off)
		for ctx.Err() == nil {
			d.runProgram(ctx, confirm)
		}
	}()
}

// runProgram runs swupdate until it ends or ctx ends. If it ends itself, runProgram records the reason and waits for restartDelay.
func (d *device) runProgram(ctx context.Context, confirm int) {
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.Error(err)
	}
	defer func() { _ = log.Close() }()
	process := d.command(ctx, confirm)
	process.Stdout, process.Stderr = log, log
	d.network.runInside(func() { err = process.Start() })
	if err == nil {
		d.pid.Store(int64(process.Process.Pid))
		err = process.Wait()
	}
	if ctx.Err() != nil {
		return
	}
	d.restarts.Add(1)
	d.Logf("%s: swupdate ended itself: %v; the end of its log:\n%s", d.id, err, d.logEnd(600))
	select {
	case <-ctx.Done():
	case <-time.After(restartDelay):
	}
}

// command returns the command that runs swupdate with an empty folder for its sockets. The end of ctx kills all its processes.
func (d *device) command(ctx context.Context, confirm int) *exec.Cmd {
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
	process := exec.CommandContext(ctx, d.program, "-l", "5", "-M", "-m", "-H", "board:1.0", "-k", d.image.key, "-p", "touch "+d.marker(), "-u", suricatta)
	process.Dir = filepath.Join(d.dir, "run")
	process.Env = append(os.Environ(), "TMPDIR="+filepath.Join(d.dir, "tmp"))
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return syscall.Kill(-process.Process.Pid, syscall.SIGKILL) }
	return process
}

// signal sends a signal to all processes of swupdate.
func (d *device) signal(signal syscall.Signal) {
	if pid := int(d.pid.Load()); pid > 0 {
		_ = syscall.Kill(-pid, signal)
	}
}

// marker is the file that swupdate creates after an installation.
func (d *device) marker() string { return filepath.Join(d.dir, "installed") }

// logEnd returns the last bytes of the log of swupdate.
func (d *device) logEnd(bytes int) string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
	return string(text[max(0, len(text)-bytes):])
}

// awaitInside waits until a download of the device begins.
func (d *device) awaitInside() {
	d.Helper()
	d.awaitStep("a download", func() bool {
		select {
		case <-d.inside:
			return true
		default:
			return false
		}
	})
}

// awaitInstalled waits until swupdate has installed the update.
func (d *device) awaitInstalled() {
	d.Helper()
	d.awaitStep("an installation", func() bool {
		_, err := os.Stat(d.marker())
		return err == nil
	})
}

// awaitEvent waits for an event of the device whose detail contains detail.
func (d *device) awaitEvent(kind, detail string) {
	d.Helper()
	d.awaitStep("the event "+kind, func() bool { return d.hasEvent(kind, detail) })
}

// hasEvent reports whether the device has an event whose detail contains detail.
func (d *device) hasEvent(kind, detail string) bool {
	d.Helper()
	for _, e := range d.events(d.id, kind) {
		if strings.Contains(e.Detail, detail) {
			return true
		}
	}
	return false
}

func (d *device) awaitStep(what string, ok func() bool) {
	d.Helper()
	if !d.await(d.id+": "+what, ok) {
		d.Errorf("%s: the task is %s; the end of the log of swupdate:\n%s", d.id, d.taskState(d.id), d.logEnd(4000))
	}
}

// finish boots the device after each installation, until its task has succeeded. After a boot, swupdate reports the state that confirm
// returns. If the lease has ended and the device has no action to report about, it installs the update again.
func (d *device) finish(confirm func() int) {
	d.Helper()
	d.awaitStep("its success", func() bool {
		if os.Remove(d.marker()) == nil {
			d.halt()
			d.boot(confirm())
		}
		return d.taskState(d.id) == "succeeded"
	})
}

// succeed finishes the update with a successful installation.
func (d *device) succeed() {
	d.Helper()
	d.finish(func() int { return 2 })
}

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// running is a running `dispatcher run`. Its command writes words to a file.
type running struct {
	*testing.T
	cmd  *exec.Cmd
	errs daemon // only collects standard error
	file string // the file that the command writes to
}

// start runs a shell script under `dispatcher run`. The shell function say writes its words to the
// file.
func (d *desk) start(flags, script string) *running {
	d.Helper()
	return d.startUnder(nil, flags, script)
}

// startUnder runs `dispatcher run` under another command.
func (d *desk) startUnder(command []string, flags, script string) *running {
	d.Helper()
	r := &running{T: d.T, file: filepath.Join(d.TempDir(), "said")}
	args := append(append([]string{"run"}, strings.Fields(flags)...), "--", "sh", "-c", `say() { echo "$@" >> "$SAID"; }; `+script)
	r.cmd = program(d.T, append([]string{"SAID=" + r.file}, d.environ...), args...)
	r.cmd.Stderr = &r.errs
	if command != nil {
		r.cmd.Path, r.cmd.Args = command[0], append(command, r.cmd.Args...)
	}
	heard := make(chan os.Signal, 1) // the program inherits ignored signals, so the tests must not ignore SIGHUP under nohup
	signal.Notify(heard, syscall.SIGHUP)
	defer signal.Stop(heard)
	if err := r.cmd.Start(); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// said waits until the command has written these words.
func (r *running) said(words string) {
	r.Helper()
	r.until(words, func() string {
		text, _ := os.ReadFile(r.file)
		return string(text)
	})
}

// told waits until dispatcher run has written these words.
func (r *running) told(words string) {
	r.Helper()
	r.until(words, r.errs.text)
}

func (r *running) until(words string, read func() string) {
	r.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.Now().Add(patience); ; <-tick.C {
		if text := read(); strings.Contains(text, words) {
			return
		}
		if time.Now().After(over) {
			r.Fatalf("%q was not said; said: %q %q", words, read(), r.errs.text())
		}
	}
}

func (r *running) exits(code int) {
	r.Helper()
	_ = r.cmd.Wait()
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		r.Errorf("exit %d, want %d: %s", got, code, r.errs.text())
	}
}

// nobodyHolds expects that no slot of pool p is held and that no holder waits.
func (d *desk) nobodyHolds() {
	d.Helper()
	var all []operators.Lease
	d.read(&all, "leases list p")
	if len(all) != 0 {
		d.Errorf("leases are left: %+v", all)
	}
}

func TestRunHoldsASlotWhileItsCommandRuns(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	first := d.start("--pool p --lease 20s", `say "$DISPATCHER_POOL $DISPATCHER_SLOT $DISPATCHER_TOKEN $DISPATCHER_LEASE"; while [ ! -e "$SAID.end" ]; do sleep 0.05; done; exit 7`)
	first.said("p 0 1 1\n")
	second := d.start("--pool p --wait 5m", `say second`)
	second.told("Waiting for a slot: position 1 in line")
	d.try("", "run", "--pool", "p", "--wait", "0", "--", "true").exit(exitNotGranted).says("No slot of pool p was granted within 0s")
	if _, err := os.Stat(second.file); err == nil {
		t.Fatal("the second one runs beside the first")
	}
	if err := os.WriteFile(first.file+".end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first.exits(7)
	second.said("second")
	second.exits(0)
	d.nobodyHolds()
}

func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	for signal, word := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1"} {
		r := d.start("--pool p", `trap 'say got '`+word+` `+word+`; trap 'exit 9' QUIT; say ready; while :; do sleep 0.05; done`)
		r.said("ready")
		for range 2 { // dispatcher run passes on both signals and ends with neither
			if err := r.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
		}
		r.said("got " + word)
		if err := r.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		r.exits(9)
		d.nobodyHolds()
	}
}

// A command under nohup continues after its terminal closes, and keeps its slot.
func TestRunUnderNohup(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	r := d.startUnder([]string{"/usr/bin/nohup"}, "--pool p", `trap 'say terminated; exit 3' TERM; say ready; while :; do sleep 0.05; done`)
	r.said("ready")
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if err := r.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	r.said("terminated")
	r.exits(3)
	d.nobodyHolds()
}

// The interrupt arrives before the first answer, so dispatcher run does not know its waiting lease
// yet.
func TestRunThatIsInterruptedBeforeItsFirstAnswerLeavesTheLine(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	d.run("leases acquire p --holder other")
	for range 3 {
		r := d.start("--pool p --holder me", `say never`)
		r.until(`"me-`, func() string { return d.run("leases list p --output json") })
		if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		r.exits(1)
		if left := d.run("leases list p"); strings.Contains(left, "me-") {
			t.Errorf("leases: %s", left)
		}
	}
}

func TestRunThatIsInterruptedInLineLeavesIt(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	d.run("leases acquire p --holder other")
	r := d.start("--pool p --holder me", `say never`)
	r.told("Waiting for a slot")
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.exits(1)
	var all []operators.Lease
	d.read(&all, "leases list p")
	if len(all) != 1 || all[0].Holder != "other" {
		t.Errorf("leases: %+v", all)
	}
}

func TestRunThatIsKilledTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	r := d.start("--pool p --lease 3s --grace 100ms", `trap 'say asked' TERM; say ready; sleep 600 & while :; do sleep 0.05; done`)
	r.said("ready")
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.said("asked")
	next := d.start("--pool p --wait 1m", `say next`) // gets the slot after the lease has ended
	next.said("next")
	next.exits(0)
	d.nobodyHolds()
}

func TestRunEndsACommandWhoseSlotIsTaken(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	r := d.start("--pool p --lease 3s", `trap 'say asked; exit 0' TERM; say ready; while :; do sleep 0.05; done`)
	r.said("ready")
	d.run("pools release p 0 --reason", "it hangs")
	r.said("asked")
	r.exits(exitLeaseLost)
	r.told("asked to stop")
	d.nobodyHolds()
}

// If the network is cut, the command ends before its lease ends, and the exit status says so whether the command ends at the signal or
// is killed.
func TestRunEndsACommandWhoseLeaseIsNotRenewed(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	d.run("pools create q --capacity 1")
	proxy := servers.NewProxy(t, strings.TrimPrefix(d.url, "http://"))
	direct := d.environ
	d.environ = append([]string{"DISPATCHER_URL=http://" + proxy.Addr}, d.environ[1:]...)
	r := d.start("--pool p --lease 4s --grace 500ms --holder cut", `trap 'say asked' TERM; say ready; while :; do sleep 0.05; done`)
	obedient := d.start("--pool q --lease 6s --grace 1900ms", `trap 'exit 0' TERM; say ready; while :; do sleep 0.05; done`)
	d.environ = direct
	r.said("ready")
	obedient.said("ready")
	proxy.Cut()
	r.said("asked")
	r.told("is not renewed")
	var all []operators.Lease
	d.read(&all, "leases list p")
	if len(all) != 1 || !strings.HasPrefix(all[0].Holder, "cut-") {
		t.Errorf("the command was asked to stop when its lease had ended: %+v", all)
	}
	r.exits(exitLeaseLost)
	d.read(&all, "leases list p")
	if len(all) != 1 {
		t.Errorf("the command ended when its lease had ended: %+v", all)
	}
	obedient.exits(exitLeaseLost)
}

func TestRunOfNoCommand(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create p --capacity 1")
	d.try("", "run", "--pool", "p", "--", "no-such-program").exit(127).says("no-such-program")
	d.try("", "run", "--pool", "p", "--", "/").exit(126)
	d.nobodyHolds()
	d.try("", "run", "--pool", "p").exit(exitUsage)
	d.try("", "run", "--pool", "p", "--lease", "1s", "--", "true").exit(exitUsage).says("--lease")
	d.try("", "run", "--pool", "p", "--grace", "1m", "--", "true").exit(exitUsage).says("--grace")
	d.try("", "run", "--pool", "none", "--", "true").exit(exitFailure).says("not_found")
}

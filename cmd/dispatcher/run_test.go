package main

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// runProcess is a running `dispatcher run`. Its command writes words to a file.
type runProcess struct {
	*testing.T
	cmd      *exec.Cmd
	stderr   runningProgram // only collects standard error
	saidFile string         // the file that the command writes to
}

// startRun runs a shell script under `dispatcher run`. The shell function say writes its words to the
// file.
func (d *commandRunner) startRun(flags, script string) *runProcess {
	d.Helper()
	return d.startRunUnder(nil, flags, script)
}

// startRunUnder runs `dispatcher run` under another command.
func (d *commandRunner) startRunUnder(command []string, flags, script string) *runProcess {
	d.Helper()
	r := &runProcess{T: d.T, saidFile: filepath.Join(d.TempDir(), "said")}
	args := append(append([]string{"run"}, strings.Fields(flags)...), "--", "sh", "-c", `say() { echo "$@" >> "$SAID"; }; `+script)
	r.cmd = programCommand(d.T, append([]string{"SAID=" + r.saidFile}, d.environ...), args...)
	r.cmd.Stderr = &r.stderr
	if command != nil {
		r.cmd.Path, r.cmd.Args = command[0], append(command, r.cmd.Args...)
	}
	heard := make(chan os.Signal, 1) // the program inherits ignored signals, so the tests must not ignore SIGHUP under nohup
	signal.Notify(heard, syscall.SIGHUP)
	defer signal.Stop(heard)
	must.Succeed(d, r.cmd.Start())
	d.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// waitForCommand waits until the command has written these words.
func (r *runProcess) waitForCommand(words string) {
	r.Helper()
	r.waitForText(words, func() string {
		text, _ := os.ReadFile(r.saidFile)
		return string(text)
	})
}

// waitForStderr waits until dispatcher run has written these words.
func (r *runProcess) waitForStderr(words string) {
	r.Helper()
	r.waitForText(words, r.stderr.String)
}

func (r *runProcess) waitForText(words string, read func() string) {
	r.Helper()
	await.True(r.T, words, func() bool { return strings.Contains(read(), words) }, read, r.stderr.String)
}

func (r *runProcess) expectExit(code int) {
	r.Helper()
	_ = r.cmd.Wait()
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		r.Errorf("exit %d, want %d: %s", got, code, r.stderr.String())
	}
}

// expectNoLeases expects that no slot of pool p is held and that no holder waits.
func (d *commandRunner) expectNoLeases() {
	d.Helper()
	var all []operators.Lease
	d.decodeOutput(&all, "leases list p")
	if len(all) != 0 {
		d.Errorf("leases are left: %+v", all)
	}
}

func TestRunHoldsASlotWhileItsCommandRuns(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	first := d.startRun("--pool p --lease 20s", `say "$DISPATCHER_POOL $DISPATCHER_SLOT $DISPATCHER_TOKEN $DISPATCHER_LEASE"; while [ ! -e "$SAID.end" ]; do sleep 0.05; done; exit 7`)
	first.waitForCommand("p 0 1 1\n")
	second := d.startRun("--pool p --wait 5m", `say second`)
	second.waitForStderr("Waiting for a slot: position 1 in the queue")
	d.runCommand("", "run", "--pool", "p", "--wait", "0", "--", "true").expectExit(exitNotGranted).expectErrors("No slot of pool p was granted within 0s")
	if _, err := os.Stat(second.saidFile); err == nil {
		t.Fatal("the second one runs beside the first")
	}
	must.Succeed(t, os.WriteFile(first.saidFile+".end", nil, 0o600))
	first.expectExit(7)
	second.waitForCommand("second")
	second.expectExit(0)
	d.expectNoLeases()
}

func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	for signal, word := range map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1"} {
		r := d.startRun("--pool p", `trap 'say got '`+word+` `+word+`; trap 'exit 9' QUIT; say ready; while :; do sleep 0.05; done`)
		r.waitForCommand("ready")
		for range 2 { // dispatcher run passes on both signals and ends with neither
			must.Succeed(t, r.cmd.Process.Signal(signal))
		}
		r.waitForCommand("got " + word)
		must.Succeed(t, r.cmd.Process.Signal(syscall.SIGQUIT))
		r.expectExit(9)
		d.expectNoLeases()
	}
}

// A command under nohup continues after its terminal closes, and keeps its slot.
func TestRunUnderNohup(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	r := d.startRunUnder([]string{"/usr/bin/nohup"}, "--pool p", `trap 'say terminated; exit 3' TERM; say ready; while :; do sleep 0.05; done`)
	r.waitForCommand("ready")
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		must.Succeed(t, r.cmd.Process.Signal(signal))
	}
	r.waitForCommand("terminated")
	r.expectExit(3)
	d.expectNoLeases()
}

// The interrupt arrives before the first answer, so dispatcher run does not know its waiting lease yet. It must leave the queue
// nevertheless.
func TestRunThatIsInterruptedBeforeItsFirstAnswerLeavesTheLine(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	d.run("leases acquire p --holder other")
	for range 3 {
		r := d.startRun("--pool p --holder me", `say never`)
		r.waitForText(`"me-`, func() string { return d.run("leases list p --output json") })
		must.Succeed(t, r.cmd.Process.Signal(syscall.SIGTERM))
		r.expectExit(1)
		if left := d.run("leases list p"); strings.Contains(left, "me-") {
			t.Errorf("leases: %s", left)
		}
	}
}

func TestRunThatIsInterruptedInLineLeavesIt(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	d.run("leases acquire p --holder other")
	r := d.startRun("--pool p --holder me", `say never`)
	r.waitForStderr("Waiting for a slot")
	must.Succeed(t, r.cmd.Process.Signal(syscall.SIGTERM))
	r.expectExit(1)
	var all []operators.Lease
	d.decodeOutput(&all, "leases list p")
	if len(all) != 1 || all[0].Holder != "other" {
		t.Errorf("leases: %+v", all)
	}
}

func TestRunThatIsKilledTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	r := d.startRun("--pool p --lease 3s --grace 100ms", `trap 'say asked' TERM; say ready; sleep 600 & while :; do sleep 0.05; done`)
	r.waitForCommand("ready")
	must.Succeed(t, r.cmd.Process.Kill())
	r.waitForCommand("asked")
	next := d.startRun("--pool p --wait 1m", `say next`) // gets the slot after the lease has ended
	next.waitForCommand("next")
	next.expectExit(0)
	d.expectNoLeases()
}

func TestRunEndsACommandWhoseSlotIsTaken(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	r := d.startRun("--pool p --lease 3s", `trap 'say asked; exit 0' TERM; say ready; while :; do sleep 0.05; done`)
	r.waitForCommand("ready")
	d.run("pools release p 0 --reason", "it hangs")
	r.waitForCommand("asked")
	r.expectExit(exitLeaseLost)
	r.waitForStderr("asked to stop")
	d.expectNoLeases()
}

// The network is cut, so the lease cannot be renewed. The command must end before its lease ends. The exit status must show the lost lease,
// whether the command ends at the signal or is killed.
func TestRunEndsACommandWhoseLeaseIsNotRenewed(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	d.run("pools create q --capacity 1")
	proxy := servers.NewProxy(t, strings.TrimPrefix(d.url, "http://"))
	direct := d.environ
	d.environ = append([]string{"DISPATCHER_URL=http://" + proxy.Addr}, d.environ[1:]...)
	r := d.startRun("--pool p --lease 4s --grace 500ms --holder cut", `trap 'say asked' TERM; say ready; while :; do sleep 0.05; done`)
	obedient := d.startRun("--pool q --lease 6s --grace 1900ms", `trap 'exit 0' TERM; say ready; while :; do sleep 0.05; done`)
	d.environ = direct
	r.waitForCommand("ready")
	obedient.waitForCommand("ready")
	proxy.Cut()
	r.waitForCommand("asked")
	r.waitForStderr("was not renewed")
	var all []operators.Lease
	d.decodeOutput(&all, "leases list p")
	if len(all) != 1 || !strings.HasPrefix(all[0].Holder, "cut-") {
		t.Errorf("the command was asked to stop when its lease had ended: %+v", all)
	}
	r.expectExit(exitLeaseLost)
	d.decodeOutput(&all, "leases list p")
	if len(all) != 1 {
		t.Errorf("the command ended when its lease had ended: %+v", all)
	}
	obedient.expectExit(exitLeaseLost)
}

func TestRunOfNoCommand(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	d.runCommand("", "run", "--pool", "p", "--", "no-such-program").expectExit(127).expectErrors("no-such-program")
	d.runCommand("", "run", "--pool", "p", "--", "/").expectExit(126)
	d.expectNoLeases()
	d.runCommand("", "run", "--pool", "p").expectExit(exitUsage)
	d.runCommand("", "run", "--pool", "p", "--lease", "1s", "--", "true").expectExit(exitUsage).expectErrors("--lease")
	d.runCommand("", "run", "--pool", "p", "--grace", "1m", "--", "true").expectExit(exitUsage).expectErrors("--grace")
	d.runCommand("", "run", "--pool", "none", "--", "true").expectExit(exitFailure).expectErrors("not_found")
}

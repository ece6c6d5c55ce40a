package main

import (
	"os"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// openTerminal opens a terminal: master is the side of the person, slave is the side of the
// program.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal("no terminals here: ", err)
	}
	fd := int(master.Fd())
	must.Succeed(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must.Succeed(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	must.Succeed(t, err)
	return master, slave
}

func TestProgressIsDrawnOnATerminal(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.run("batches create --pool p --device d-1 --device d-2")
	d.endTask("d-1", "succeeded")
	screen := d.startOnTerminal("batches", "watch", "1")
	screen.waitForOutput(t, `\r\x1b\[K\x1b\[\?7l\[#{15}\.{15}\] 1/2 50%, 0 dispatched, 0 failed`)
	d.endTask("d-2", "succeeded")
	screen.waitForOutput(t, `\[#{30}\] 2/2 100%`)
	screen.waitForOutput(t, `state +finished`)
	<-screen.ended
	if code := screen.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestDestructiveCommandsAskOnATerminal(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.run("batches create --pool p --device d-1 --device d-2")
	for _, answer := range []string{"n\r", "\r", "\x04", "perhaps\r"} {
		screen := d.startOnTerminal("batches", "cancel", "1")
		screen.waitForOutput(t, `Cancel batch 1: 2 tasks wait, 0 dispatched\? \[y/N\] `)
		screen.typeText(t, answer)
		<-screen.ended
		if code := screen.cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("%q: exit %d, want 1", answer, code)
		}
		screen.waitForOutput(t, "nothing was changed")
	}
	screen := d.startOnTerminal("tasks", "cancel", "--batch", "1")
	screen.waitForOutput(t, `Cancel 2 tasks\? \[y/N\] `)
	screen.typeText(t, "yes\r")
	<-screen.ended
	screen.waitForOutput(t, "2 tasks cancelled")
	d.run("batches create --pool p --device d-1")
	screen = d.startOnTerminal("batches", "cancel", "2", "--yes")
	screen.waitForOutput(t, `\[#{30}\] 1/1 100%, 0 dispatched`)
	screen.waitForOutput(t, `counts +1 cancelled`)
	<-screen.ended
}

// typeText writes text to the terminal as a person types it.
func (d *runningProgram) typeText(t *testing.T, text string) {
	t.Helper()
	_, err := d.terminal.WriteString(text)
	must.Succeed(t, err)
}

// startOnTerminal runs a command on its own terminal.
func (d *commandRunner) startOnTerminal(args ...string) *runningProgram {
	d.Helper()
	master, slave := openTerminal(d.T)
	p := &runningProgram{cmd: programCommand(d.T, d.environ, args...), ended: make(chan struct{}), terminal: master}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must.Succeed(d, p.cmd.Start())
	_ = slave.Close()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			_, _ = p.Write(buffer[:n])
			if err != nil { // the program has closed its terminal
				return
			}
		}
	}()
	go func() {
		_ = p.cmd.Wait()
		<-drained
		close(p.ended)
	}()
	d.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		_ = master.Close()
	})
	return p
}

// While the command runs, it receives the input of the terminal. Afterwards dispatcher run receives
// it again.
func TestRunGivesItsCommandTheTerminal(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	screen := d.startOnTerminal("run", "--pool", "p", "--", "sh", "-c", `trap 'echo interrupted' INT; echo ready; read -r line; echo "read $line"; read -r line; echo "read $line"`)
	screen.waitForOutput(t, `ready`)
	screen.typeText(t, "hello\r")
	screen.waitForOutput(t, `read hello`)
	screen.typeText(t, "\x03")
	screen.waitForOutput(t, `interrupted`)
	screen.typeText(t, "bye\r")
	<-screen.ended
	if code := screen.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

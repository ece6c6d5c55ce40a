package devices_test

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
)

// bootTime is the time from the end of a killed program to its next start.
const bootTime = 100 * time.Millisecond

// deviceProcess runs a device program, and starts it again after each kill.
type deviceProcess struct {
	await.Output // of all runs

	command   func() *exec.Cmd
	onFailure func(problem string) // called if the program ends by itself

	mu     sync.Mutex
	cmd    *exec.Cmd     // nil between a kill and the next start
	exited chan struct{} // closed when cmd has ended
	isOver bool          // no further start
}

// start starts the program, unless it runs or is over.
func (d *deviceProcess) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isOver || d.cmd != nil {
		return
	}
	cmd, exited := d.command(), make(chan struct{})
	cmd.Stdout, cmd.Stderr = d, d
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that end also ends the processes that it started
	cmd.WaitDelay = bootTime                              // processes that outlive the program may hold its output open
	if err := cmd.Start(); err != nil {
		d.onFailure(err.Error())
		return
	}
	d.cmd, d.exited = cmd, exited
	go func() {
		err := cmd.Wait()
		close(exited)
		d.mu.Lock()
		endedAlone := d.cmd == cmd
		d.mu.Unlock()
		if endedAlone {
			d.onFailure(fmt.Sprintf("ended by itself: %v", err))
		}
	}()
}

// kill ends the program alone (SIGKILL): processes that it started live on. The program starts again after bootTime. Without
// a running program, kill does nothing.
func (d *deviceProcess) kill() { d.killWith(func(p *os.Process) { _ = p.Kill() }) }

// killWith ends the program by calling end.
func (d *deviceProcess) killWith(end func(*os.Process)) {
	d.mu.Lock()
	cmd, exited := d.cmd, d.exited
	d.cmd = nil
	d.mu.Unlock()
	if cmd == nil {
		return
	}
	end(cmd.Process)
	<-exited
	time.AfterFunc(bootTime, d.start)
}

// end kills the program and all processes that it started. The program is not started again.
func (d *deviceProcess) end() {
	d.mu.Lock()
	d.isOver = true
	d.mu.Unlock()
	d.killWith(func(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) })
}

// outputEnd returns the last part of the output.
func (d *deviceProcess) outputEnd() string {
	text := d.String()
	return text[max(0, len(text)-4000):]
}

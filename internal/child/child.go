package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Config is a command.
type Config struct {
	Args  []string // a program, looked up in PATH, and its arguments
	Env   []string // all of its environment
	In    *os.File // all three may be terminals
	Out   *os.File
	Err   *os.File
	Guard []string  // a command line that calls Guard
	Ends  time.Time // when it must have ended, unless Until says otherwise
}

// Child is a command that runs.
type Child struct {
	cmd   *exec.Cmd
	guard *guard
	tty   *os.File // given to the group; nil: it is on none, or in the background
	ended chan struct{}
	err   error // once it has ended
}

// ErrOver is the error of Start if the guard ended before the command began, because the time
// of the command was over.
var ErrOver = errors.New("the command was not started: its time was over")

// Start starts a command. It returns ErrOver, or an error of exec.Command if the program is not
// there or may not be run.
func Start(c Config) (*Child, error) {
	guard, err := startGuard(c.Guard)
	if err != nil {
		return nil, err
	}
	guard.until(time.Until(c.Ends))
	p := &Child{guard: guard, ended: make(chan struct{})}
	p.cmd = exec.Command(c.Args[0], c.Args[1:]...) //nolint:noctx // it ends as Child says
	p.cmd.Env, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.Env, c.In, c.Out, c.Err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: guard.group()}
	if inForeground(c.In) {
		p.tty = c.In
		p.cmd.SysProcAttr.Foreground, p.cmd.SysProcAttr.Ctty = true, int(c.In.Fd())
	}
	if err := p.cmd.Start(); err != nil {
		guard.end()
		if errors.Is(err, syscall.EPERM) { // the group that it was to join is gone with the guard
			return nil, ErrOver
		}
		return nil, err //nolint:wrapcheck // it names the program
	}
	rescue.Async(p.wait)
	return p, nil
}

func (c *Child) wait() error {
	c.err = c.cmd.Wait()
	c.guard.end()
	if c.tty != nil {
		takeTerminal(c.tty)
	}
	close(c.ended)
	return nil
}

// Ended is closed when the command and its group have ended.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Until says for how long the command may run from now on. By then it is ended, with all that
// it started.
func (c *Child) Until(term time.Duration) { c.guard.until(term) }

// Signal reaches the command and all that it started.
func (c *Child) Signal(s syscall.Signal) { c.guard.signal(s) }

// Code is the exit code of a command that has ended, as shells say it: 128 and the
// number of the signal that ended it.
func (c *Child) Code() int {
	<-c.ended
	var exit *exec.ExitError
	switch {
	case c.err == nil:
		return 0
	case !errors.As(c.err, &exit):
		return 1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// StartCode is the exit code of a command that could not be started, as shells say it.
func StartCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 126
}

// inForeground says whether this process has the keys of the terminal f.
func inForeground(f *os.File) bool {
	if f == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// takeTerminal takes the keys back. A process in the background that does so is stopped by
// SIGTTOU, unless it ignores that.
func takeTerminal(f *os.File) {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPGRP, unix.Getpgrp()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "dispatcher: the terminal stays with the command:", err)
	}
}

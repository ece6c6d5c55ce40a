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

// Config describes a command to start.
type Config struct {
	Args      []string // a program, which is looked up in PATH, and its arguments
	Env       []string // the whole environment of the command
	In        *os.File // In, Out and Err may be terminals
	Out       *os.File
	Err       *os.File
	GuardArgs []string  // a command line whose process calls the function Guard
	Deadline  time.Time // the time by which the command must have ended, unless SetTimeLeft changes it
}

// Child is a command that was started.
type Child struct {
	cmd   *exec.Cmd
	guard *guard
	tty   *os.File // the terminal that the group controls; nil if the group has no terminal or is in the background
	ended chan struct{}
	err   error // set before ended is closed
}

// ErrDeadlinePassed is the error of Start if the guard ended before the command began, because the time Config.Deadline had passed.
var ErrDeadlinePassed = errors.New("the command was not started: its deadline had passed")

// Start starts the command that config describes. It returns ErrDeadlinePassed, or an error of exec.Command if the program does not exist
// or must not be executed.
func Start(config Config) (*Child, error) {
	guard, err := startGuard(config.GuardArgs)
	if err != nil {
		return nil, err
	}
	guard.sendTimeLeft(time.Until(config.Deadline))
	p := &Child{guard: guard, ended: make(chan struct{})}
	p.cmd = exec.Command(config.Args[0], config.Args[1:]...) //nolint:noctx // the guard ends the command, not a context
	p.cmd.Env, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = config.Env, config.In, config.Out, config.Err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: guard.processGroupID()}
	if isInForeground(config.In) {
		p.tty = config.In
		p.cmd.SysProcAttr.Foreground, p.cmd.SysProcAttr.Ctty = true, int(config.In.Fd())
	}
	if err := p.cmd.Start(); err != nil {
		guard.killAndWait()
		if errors.Is(err, syscall.EPERM) { // the group that the command should join ended with the guard
			return nil, ErrDeadlinePassed
		}
		return nil, err //nolint:wrapcheck // the error names the program
	}
	rescue.Async(p.wait)
	return p, nil
}

// wait waits until the command has ended, ends its process group and takes the terminal back.
func (c *Child) wait() error {
	c.err = c.cmd.Wait()
	c.guard.killAndWait()
	if c.tty != nil {
		takeTerminal(c.tty)
	}
	close(c.ended)
	return nil
}

// Ended returns a channel that is closed when the command and its group have ended.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// SetTimeLeft sets how long the command may still run. When timeLeft has passed, the command and all processes of its group are ended.
func (c *Child) SetTimeLeft(timeLeft time.Duration) { c.guard.sendTimeLeft(timeLeft) }

// Signal sends signal to the command and to all processes of its group.
func (c *Child) Signal(signal syscall.Signal) { c.guard.signal(signal) }

// WaitExitCode waits until the command has ended and returns its exit code as shells report it: 128 plus the signal number if a signal ended it.
func (c *Child) WaitExitCode() int {
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

// StartErrorCode returns the exit code with which shells report err, an error of Start: 127 if the program was not found, else 126.
func StartErrorCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return 127
	}
	return 126
}

func isInForeground(terminal *os.File) bool {
	if terminal == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// takeTerminal makes this process the foreground process group of the terminal again. During this call it ignores SIGTTOU, because this
// signal would stop the process.
func takeTerminal(terminal *os.File) {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	if err := unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPGRP, unix.Getpgrp()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "dispatcher: cannot take the terminal back from the command:", err)
	}
}

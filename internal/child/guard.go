package child

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Guard does the work of the guard. Call it in the process that Config.GuardArgs starts. Guard writes "ready" to out, and then reads lines
// from in. Each line is the time in ms for which the process group may still run. Guard ends the group at that time, and at once when the
// input ends, which happens when the parent process ends. It sends SIGTERM first, and SIGKILL after grace, but never later than the end of
// the group's time. So the command does not run on if the parent process was stopped or hangs. Guard returns only if it failed.
func Guard(in io.Reader, out io.Writer, grace time.Duration) error {
	signal.Ignore(catchableSignals()...) // these signals are sent to the whole group, and only the command should react
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return fmt.Errorf("guard: reporting that it is ready: %w", err)
	}
	timesLeft, inputEnded := make(chan time.Duration), make(chan struct{})
	rescue.Async(func() error {
		defer close(inputEnded)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if ms, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				timesLeft <- time.Duration(ms) * time.Millisecond
			}
		}
		return nil
	})
	termTimer := time.NewTimer(time.Hour)
	termTimer.Stop()
	deadline := time.Now().Add(time.Hour)
	for waiting := true; waiting; {
		select {
		case timeLeft := <-timesLeft:
			deadline = time.Now().Add(timeLeft)
			termTimer.Reset(timeLeft - grace)
		case <-termTimer.C:
			waiting = false
		case <-inputEnded:
			waiting = false
		}
	}
	if err := syscall.Kill(0, syscall.SIGTERM); err != nil {
		return fmt.Errorf("guard: ending its process group: %w", err)
	}
	<-time.After(min(grace, time.Until(deadline)))
	return syscall.Kill(0, syscall.SIGKILL)
}

// catchableSignals returns the signals that end or stop a process by default, and that it can ignore.
func catchableSignals() []os.Signal {
	return []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTTOU, syscall.SIGTTIN, syscall.SIGTSTP,
	}
}

// guard is a running guard process. Its process id is the id of the group.
type guard struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu       sync.Mutex
	hasEnded bool // the guard has ended, so another process may have its id
}

func startGuard(args []string) (*guard, error) {
	g := &guard{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})} //nolint:noctx // the guard must outlive every context
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g.cmd.Stderr = os.Stderr
	stdin, err := g.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guard: opening its input: %w", err)
	}
	g.stdin = stdin
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("guard: opening its output: %w", err)
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("guard: starting it: %w", err)
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	rescue.Async(g.wait)
	if err != nil {
		g.killAndWait()
		return nil, fmt.Errorf("guard: it did not report that it is ready: %w", err)
	}
	return g, nil
}

// wait waits until the guard has ended. It then kills the process group of the guard, which nobody else would end in
// time.
func (g *guard) wait() error {
	defer close(g.ended)
	err := g.cmd.Wait()
	g.signal(syscall.SIGKILL)
	return err
}

func (g *guard) processGroupID() int { return g.cmd.Process.Pid }

// sendTimeLeft sends the guard the time for which the group may still run. If the guard has ended, the write fails, and the group has ended,
// too.
func (g *guard) sendTimeLeft(timeLeft time.Duration) {
	_, _ = fmt.Fprintln(g.stdin, timeLeft.Milliseconds())
}

func (g *guard) signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.hasEnded {
		_ = syscall.Kill(-g.processGroupID(), s)
	}
}

// killAndWait kills the group, including the guard, and waits until the guard has ended.
func (g *guard) killAndWait() {
	g.signal(syscall.SIGKILL)
	<-g.ended
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hasEnded = true
}

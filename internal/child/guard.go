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

// Guard is the guard's work: call it in the process that Config.Guard starts. It says on out
// that it is ready, and reads on in for how long (ms) the group may run from now on. It ends
// the group by then, and at once when in ends, as it does with the process at its other end: first it
// asks (SIGTERM), then it kills, grace later, and never after the time. So a process that was
// stopped, or hangs, does not keep the command running either. Guard returns only an error.
func Guard(in io.Reader, out io.Writer, grace time.Duration) error {
	signal.Ignore(asks()...) // the group is sent them for the command
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	terms, over := make(chan time.Duration), make(chan struct{})
	rescue.Async(func() error {
		defer close(over)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if ms, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				terms <- time.Duration(ms) * time.Millisecond
			}
		}
		return nil
	})
	ask := time.NewTimer(time.Hour)
	ask.Stop()
	end := time.Now().Add(time.Hour)
	for waiting := true; waiting; {
		select {
		case term := <-terms:
			end = time.Now().Add(term)
			ask.Reset(term - grace)
		case <-ask.C:
			waiting = false
		case <-over:
			waiting = false
		}
	}
	if err := syscall.Kill(0, syscall.SIGTERM); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	<-time.After(min(grace, time.Until(end)))
	return syscall.Kill(0, syscall.SIGKILL)
}

// asks are the signals that a process may use as it likes.
func asks() []os.Signal {
	return []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTTOU, syscall.SIGTTIN, syscall.SIGTSTP,
	}
}

// guard is one that runs. Its process id is that of the group.
type guard struct {
	cmd   *exec.Cmd
	terms io.WriteCloser
	ended chan struct{}

	mu   sync.Mutex
	over bool // another process may have its id
}

func startGuard(args []string) (*guard, error) {
	g := &guard{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})} //nolint:noctx // it outlives every context
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g.cmd.Stderr = os.Stderr
	terms, err := g.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	g.terms = terms
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	rescue.Async(g.wait)
	if err != nil {
		g.end()
		return nil, fmt.Errorf("guard: it did not begin: %w", err)
	}
	return g, nil
}

// wait ends the group with the guard: nobody else would end it in time.
func (g *guard) wait() error {
	defer close(g.ended)
	err := g.cmd.Wait()
	g.signal(syscall.SIGKILL)
	return err
}

func (g *guard) group() int { return g.cmd.Process.Pid }

// until tells the guard for how long the group may run. If it has ended, so has the group.
func (g *guard) until(term time.Duration) { _, _ = fmt.Fprintln(g.terms, term.Milliseconds()) }

// signal reaches every process of the group.
func (g *guard) signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		_ = syscall.Kill(-g.group(), s)
	}
}

// end kills the group with the guard in it.
func (g *guard) end() {
	g.signal(syscall.SIGKILL)
	<-g.ended
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}

package compose

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// startEngine starts a Docker engine that keeps its data in dir, and returns a function that stops it. The process must
// have a mount namespace and a network namespace of its own: the engine has the default address, and changes the rules
// of the firewall.
func startEngine(ctx context.Context, dir string) (stop func(), err error) {
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return nil, fmt.Errorf("hiding /run: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("starting the loopback interface: %w: %s", err, out)
	}
	log, err := os.Create(filepath.Join(dir, "dockerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	engine := exec.CommandContext(ctx, "dockerd", "--data-root", filepath.Join(dir, "engine"))
	engine.Cancel = func() error { return engine.Process.Signal(syscall.SIGTERM) }
	engine.Stdout, engine.Stderr = log, log
	if err := engine.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = engine.Process.Signal(syscall.SIGTERM)
		_ = engine.Wait()
		removeControlGroups()
	}
	err = poll(ctx, time.Minute, func() error {
		if out, err := exec.CommandContext(ctx, "docker", "version").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		stop()
		content, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("starting the engine: %w\n%s", err, tail(string(content), 2000))
	}
	return stop, nil
}

// removeControlGroups removes the parent control groups of the containers. The kernel refuses to remove a control group
// that is in use.
func removeControlGroups() {
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/docker")
	for _, group := range append(groups, "/sys/fs/cgroup/docker") {
		_ = os.Remove(group)
	}
}

// poll calls check every 200 ms until it returns nil, and returns its last error after the timeout.
func poll(ctx context.Context, timeout time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", timeout, err)
		case <-tick.C:
		}
	}
}

// tail returns the last bytes of a text, at most n.
func tail(text string, n int) string {
	return text[max(0, len(text)-n):]
}

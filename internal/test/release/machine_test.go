package release

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// machine is a Debian root in which systemd runs. It has processes, users and mounts of its own, and the network of
// this machine.
type machine struct {
	t      *testing.T
	dir    string
	nspawn *exec.Cmd
}

// newBase installs Debian with systemd and rpm, and nothing else, into a folder.
func newBase(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"debootstrap", "rpm", "systemd-nspawn", "nsenter"} {
		servers.RequireProgram(t, program)
	}
	dir := filepath.Join(t.TempDir(), "base")
	runCommand(t, nil, "debootstrap", "--variant=minbase", "--include=systemd,systemd-sysv,rpm", "bookworm", dir)
	return dir
}

// newMachine copies the root base. It does not start the machine.
func newMachine(t *testing.T, base string) *machine {
	t.Helper()
	m := &machine{t: t, dir: filepath.Join(t.TempDir(), "root")}
	runCommand(t, nil, "cp", "-a", "--reflink=auto", base, m.dir)
	return m
}

// boot starts systemd, and waits until it has started its units.
func (m *machine) boot() {
	m.t.Helper()
	process := servers.StartProcess(m.t, func() *exec.Cmd {
		m.nspawn = exec.Command("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--resolv-conf=off", "--console=pipe",
			"--directory", m.dir, "--boot")
		return m.nspawn
	}, func() error {
		out, err := m.tryCommand("systemctl", "is-system-running")
		if out == "running\n" || out == "degraded\n" { // a container has no kernel modules to load
			return nil
		}
		return fmt.Errorf("%q: %w", out, err)
	})
	m.t.Cleanup(process.Stop)
}

// leader returns the id of the first process of the machine.
func (m *machine) leader() string {
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.nspawn.Process.Pid))
	for _, file := range children {
		if ids, _ := os.ReadFile(file); len(strings.Fields(string(ids))) > 0 {
			return strings.Fields(string(ids))[0]
		}
	}
	return "none"
}

// root returns the root of the booted machine, with its mounts.
func (m *machine) root() string {
	return "/proc/" + m.leader() + "/root"
}

func (m *machine) tryCommand(words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	words = append([]string{"--target", m.leader(), "--mount", "--uts", "--ipc", "--pid", "--"}, words...)
	out, err := exec.CommandContext(ctx, "nsenter", words...).CombinedOutput()
	return string(out), err
}

// runCommand runs a command in the machine that must succeed.
func (m *machine) runCommand(words ...string) string {
	m.t.Helper()
	out, err := m.tryCommand(words...)
	if err != nil {
		log, _ := m.tryCommand("journalctl", "--no-pager", "-n", "30", "-u", "dispatcher")
		m.t.Fatalf("%q: %v\n%s\n%s", words, err, out, log)
	}
	return out
}

func (m *machine) writeFile(name, text string, mode fs.FileMode) {
	m.t.Helper()
	must.Succeed(m.t, os.WriteFile(filepath.Join(m.root(), name), []byte(text), mode))
}

func (m *machine) readFile(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.root(), name))
	must.Succeed(m.t, err)
	return string(text)
}

func (m *machine) hasFile(name string) bool {
	_, err := os.Lstat(filepath.Join(m.root(), name))
	return err == nil
}

// runCommand runs a command on this machine that must succeed, and returns its output.
func runCommand(t *testing.T, environ []string, words ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Env = append(os.Environ(), environ...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", words, err, out)
	}
	return string(out)
}

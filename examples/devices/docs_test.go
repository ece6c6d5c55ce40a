package devices_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	root         = "../.."
	page         = root + "/docs/devices.md"
	maxPageWords = 800
)

// TestSnippetsAreFromTheFiles checks that each snippet of docs/devices.md is a part of a tested program, and that each program of the kit
// is in the table of the page.
func TestSnippetsAreFromTheFiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	must.Succeed(t, err)
	if words := len(strings.Fields(string(text))); words > maxPageWords {
		t.Errorf("%s has %d words, at most %d", page, words, maxPageWords)
	}
	snippets := regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```[a-z]+\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(snippets) == 0 {
		t.Errorf("%s has no snippets", page)
	}
	for _, s := range snippets {
		source, err := os.ReadFile(filepath.FromSlash(s[1]))
		must.Succeed(t, err)
		if !strings.Contains(string(source), s[2]) {
			t.Errorf("%s does not contain:\n%s", s[1], s[2])
		}
	}
	for _, p := range programs() {
		if !strings.Contains(string(text), "\n| `"+p.name+"` |") {
			t.Errorf("%s is not in the table of %s", p.name, page)
		}
	}
}

// TestTheFirstStepsWork runs the commands of docs/devices.md under "Start", with a server of its own.
func TestTheFirstStepsWork(t *testing.T) {
	t.Parallel()
	servers.RequireProgram(t, "python3")
	text, err := os.ReadFile(page)
	must.Succeed(t, err)
	commands := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(string(text))
	if commands == nil {
		t.Fatalf("%s has no commands", page)
	}
	dir := t.TempDir()
	server := startServer(t, filepath.Join(dir, ".dispatcher"))
	absolute, err := filepath.Abs(root)
	must.Succeed(t, err)
	must.Succeed(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	must.Succeed(t, os.Symlink(program.Path(t), filepath.Join(dir, "bin", "dispatcher")))
	must.Succeed(t, os.Symlink(filepath.Join(absolute, "examples"), filepath.Join(dir, "examples")))
	script := strings.ReplaceAll(commands[1], "http://127.0.0.1:8080", server.url)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", script+"\nkill $!")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "XDG_STATE_HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "1 succeeded") {
		t.Errorf("%v:\n%s", err, out)
	}
}

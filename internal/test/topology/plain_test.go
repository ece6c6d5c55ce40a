package topology

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestTheFirstDay runs the commands of docs/operations.md that lead from an empty machine to a tested restore. They run
// below one folder, with ports of the test, without apt and systemd.
func TestTheFirstDay(t *testing.T) {
	t.Parallel()
	w := newDocRun(t)
	_, section, _ := strings.Cut(string(readRepoFile(t, "docs/operations.md")), "\n## The first day\n")
	section, _, _ = strings.Cut(section, "\n## ")
	const pace = "scrape_interval: 10s, scrape_timeout: 8s"
	if !strings.Contains(section, pace) {
		t.Fatalf("the page does not set %s", pace)
	}
	section = strings.Replace(section, pace, "scrape_interval: 1s, scrape_timeout: 1s", 1) // the test does not wait 10 s for the first scrape
	out := w.runScript(w.localText(sectionScript(section)))
	t.Logf("%s", out)
	for _, want := range []string{`"reason":"granted"`, `"outcome":"recorded"`, "alice", " ok, 3 unknown", "\nstands_until ", "\nstate             succeeded\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the walk does not print %q", want)
		}
	}
	if bad := regexp.MustCompile(`(?m)^(failed|warning) .*\n.*`).FindAllString(out, -1); len(bad) > 0 {
		t.Errorf("doctor complains: %q", bad)
	}
}

// sectionScript returns the commands of all blocks of a section as a script. In a console block, each command is
// printed before its output.
func sectionScript(section string) string {
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```(sh|console)\n(.*?)```").FindAllStringSubmatch(section, -1) {
		if block[1] == "sh" {
			script.WriteString(block[2])
			continue
		}
		for _, command := range regexp.MustCompile(`(?m)^\$ (.*)$`).FindAllStringSubmatch(block[2], -1) {
			fmt.Fprintf(&script, "cat <<'SHOWN'\n$ %s\nSHOWN\n%s\n", command[1], command[1])
		}
	}
	return script.String()
}

type docRun struct {
	t     *testing.T
	dir   string
	ports map[string]string // port in the text -> port here
}

func newDocRun(t *testing.T) docRun {
	t.Helper()
	for _, program := range []string{"postgres", "psql", "redis-server", "mosquitto", "mosquitto_ctrl", "curl", "openssl", "setpriv", "prometheus", "promtool"} {
		servers.RequireProgram(t, program)
	}
	w := docRun{t: t, dir: servers.ClusterDir(t), ports: map[string]string{}}
	t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	w.must(os.Chmod(w.dir, 0o755)) //nolint:gosec // the servers run as other users
	for _, port := range []string{"5432", "6379", "1883", "1884", "8080", "9090"} {
		_, w.ports[port], _ = net.SplitHostPort(servers.FreeAddr(t))
	}
	for _, file := range []string{
		"systemd/dispatcher.env", "systemd/dispatcher.service", "postgres/postgresql.conf", "redis/redis.conf", "redis/users.acl",
		"mosquitto/dynsec/start.sh", "mosquitto/dynsec/mosquitto.conf", "prometheus/alerts.yaml",
	} {
		writeFile(t, filepath.Join(w.dir, "src/deploy", file), w.localText(string(readRepoFile(t, "deploy/"+file))))
	}
	w.must(os.Mkdir(filepath.Join(w.dir, "src/bin"), 0o755)) //nolint:gosec // the mode of a folder that make build creates
	program := servers.Program{Race: true}
	w.must(os.Symlink(program.Path(t), filepath.Join(w.dir, "src/bin/dispatcher")))
	return w
}

// localText replaces the folders and ports of the documentation in text by the folders and ports of this run.
func (w docRun) localText(text string) string {
	text = regexp.MustCompile(`(^|[^\w.-])(/etc/|/var/lib/|/usr/local/|/run/)(dispatcher|mosquitto|redis|postgresql|prometheus|systemd|bin|lib)\b`).
		ReplaceAllString(text, "${1}"+w.dir+"${2}${3}")
	return regexp.MustCompile(`\b(5432|6379|1883|1884|8080|9090)\b`).ReplaceAllStringFunc(text, func(port string) string { return w.ports[port] })
}

// runScript runs the script in one shell, and ends all processes that it started.
func (w docRun) runScript(script string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash")
	shell.Dir = filepath.Join(w.dir, "src")
	shell.Stdin = strings.NewReader(string(readRepoFile(w.t, "internal/test/topology/testdata/debian.sh")) + script)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	user := ""
	if u := servers.ServerUser(w.t); u != nil {
		user = fmt.Sprint(u.Uid)
	}
	shell.Env = []string{
		"R=" + w.dir, "POSTGRES=" + w.ports["5432"], "REDIS=" + w.ports["6379"], "PROMETHEUS=" + w.ports["9090"], "PGUSER_ID=" + user,
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir,
	}
	file, err := os.Create(filepath.Join(w.dir, "out")) // with a pipe, Wait would wait for the servers
	w.must(err)
	defer file.Close()
	shell.Stdout, shell.Stderr = file, file
	w.must(shell.Start())
	defer func() { _ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }()
	err = shell.Wait()
	out, _ := os.ReadFile(file.Name())
	if err != nil {
		logs, _ := exec.CommandContext(w.t.Context(), "tail", "-n", "20", filepath.Join(w.dir, "log/dispatcher"), filepath.Join(w.dir, "log/mosquitto")).CombinedOutput()
		w.t.Fatalf("%v\n%s\n%s", err, out, logs)
	}
	return string(out)
}

func (w docRun) must(err error) {
	w.t.Helper()
	must.Succeed(w.t, err)
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Succeed(t, os.WriteFile(path, []byte(content), 0o644))
}

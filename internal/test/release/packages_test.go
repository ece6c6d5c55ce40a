package release

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const (
	oldVersion = "v0.0.1"
	newVersion = "v0.0.2"
	configFile = "/etc/dispatcher/dispatcher.env"
	secretsDir = "/etc/dispatcher/secrets"

	rpmDatabase = "/var/lib/rpm" // Debian's rpm has another default
	patience    = time.Minute
)

// replica is a machine on which one replica of the dispatcher is installed, as a .deb or as a .rpm.
type replica struct {
	*machine
	format string
	addr   string // host:port
}

// TestPackages installs the .deb and the .rpm of an earlier commit in empty Debian roots, and upgrades them to this
// commit while a fleet works on both replicas. Then it removes them.
func TestPackages(t *testing.T) {
	t.Parallel()
	requireFullRun(t)
	earlier := commitBefore(t)
	older, newer := buildRelease(t, earlier, oldVersion), buildRelease(t, "HEAD", newVersion)
	t.Logf("the packages of %s are upgraded", earlier)
	base := newBase(t)
	dsn, redis, broker := servers.StartPostgres(t).NewDatabase(t), servers.StartRedis(t), servers.StartMosquittoDynsec(t)
	var replicas []replica
	for _, format := range []string{"deb", "rpm"} {
		r := replica{newMachine(t, base), format, servers.FreeAddr(t)}
		said := r.installInto(older)
		r.boot()
		r.expectRefusal(said)
		r.configure(broker.DispatcherURL, map[string]string{
			"postgres_dsn": dsn, "redis_url": redis.URL(), "mqtt_password": servers.DispatcherPassword, "admin_token": adminToken,
		})
		r.runCommand("systemctl", "enable", "--now", "dispatcher")
		r.expectRunning(oldVersion)
		r.expectConfined()
		replicas = append(replicas, r)
	}
	fleet := startFleet(t, newer, broker.Addr, replicas)
	for i, r := range replicas {
		r.awaitHeldSlots()
		t.Logf("%s: %s", r.format, r.upgrade(newer))
		r.expectRunning(newVersion)
		r.awaitHeldSlots()
		if i == 0 {
			replicas[1].expectRunning(oldVersion)
		}
		for _, each := range replicas {
			each.awaitReports()
		}
		t.Logf("%s: upgraded while the fleet works; both replicas answer reports and grant slots", r.format)
		if !strings.HasSuffix(r.readFile(configFile), changedLine) {
			t.Errorf("%s: the upgrade changed the configuration file", r.format)
		}
	}
	fleet()
	for _, r := range replicas {
		r.expectRemoved()
	}
}

const (
	adminToken  = "token-of-the-first-operator"
	changedLine = "# changed by the operator\n"
)

// commitBefore returns the commit whose packages are upgraded: the last tag. Before the first tag, the schema and the
// scripts may be edited in place, so it is the last commit that changed these or the packages.
func commitBefore(t *testing.T) string {
	t.Helper()
	if *before != "" {
		return *before
	}
	cmd := exec.CommandContext(t.Context(), "git", "describe", "--tags", "--abbrev=0", "HEAD^")
	cmd.Dir = root
	if tag, err := cmd.Output(); err == nil {
		return strings.TrimSpace(string(tag))
	}
	return strings.TrimSpace(runCommand(t, nil, "git", "-C", root, "log", "-1", "--format=%H", "--",
		"migrations", "slots/lua", "limits/lua", "release", "scripts", "deploy/systemd"))
}

// buildRelease builds the release of a commit for this machine, and returns the common beginning of the paths of its files.
func buildRelease(t *testing.T, commit, version string) string {
	t.Helper()
	source, dist := filepath.Join(t.TempDir(), "source"), t.TempDir()
	runCommand(t, nil, "git", "clone", "--quiet", "--shared", root, source)
	runCommand(t, nil, "git", "-C", source, "checkout", "--quiet", commit)
	runCommand(t, []string{"VERSION=" + version, "PLATFORMS=linux/" + runtime.GOARCH, "DIST=" + dist}, filepath.Join(source, "scripts/release"))
	return filepath.Join(dist, fmt.Sprintf("dispatcher_%s_linux_%s", version, runtime.GOARCH))
}

// installInto installs the package in the root of a machine that is not booted, and returns what the package manager
// prints.
func (r replica) installInto(release string) string {
	r.t.Helper()
	if r.format == "rpm" {
		return runCommand(r.t, nil, "rpm", "--root", r.dir, "--dbpath", rpmDatabase, "--nodeps", "--install", release+".rpm")
	}
	return runCommand(r.t, nil, "dpkg", "--root="+r.dir, "--install", release+".deb")
}

// upgrade upgrades the package on the running machine, and returns what the package manager prints. The roots contain no
// packages of RPM, so it cannot find dependencies.
func (r replica) upgrade(release string) string {
	r.t.Helper()
	content, err := os.ReadFile(release + "." + r.format)
	must.Succeed(r.t, err)
	r.writeFile("/root/package", string(content), 0o600)
	if r.format == "rpm" {
		return r.runCommand("rpm", "--dbpath", rpmDatabase, "--nodeps", "--upgrade", "/root/package")
	}
	return r.runCommand("dpkg", "--force-confold", "--install", "/root/package")
}

// expectRefusal checks that the service does not run before its secrets exist, and that the package and the service name the missing
// secrets. said is the output of the installation.
func (r replica) expectRefusal(said string) {
	r.t.Helper()
	if !strings.Contains(said, "postgres_dsn redis_url mqtt_password admin_token") {
		r.t.Errorf("%s: the installation does not name the secrets: %q", r.format, said)
	}
	r.runCommand("systemctl", "start", "dispatcher")
	r.waitUntil("a refusal", func() bool {
		state, _ := r.tryCommand("systemctl", "is-failed", "dispatcher")
		return state == "failed\n"
	})
	status, _ := r.tryCommand("systemctl", "status", "--no-pager", "dispatcher")
	if !strings.Contains(status, "DISPATCHER_POSTGRES_DSN_FILE: the file is empty") || !strings.Contains(status, "status=2") {
		r.t.Errorf("%s: started without secrets, or does not name them: %s", r.format, status)
	}
	r.t.Logf("%s, without secrets: %s%s", r.format, said, status)
}

// configure writes the secrets, and changes the configuration file.
func (r replica) configure(brokerURL string, secrets map[string]string) {
	r.t.Helper()
	for name, value := range secrets {
		r.writeFile(filepath.Join(secretsDir, name), value+"\n", 0o600)
	}
	text := regexp.MustCompile(`DISPATCHER_HTTP_LISTEN=.*`).ReplaceAllString(r.readFile(configFile), "DISPATCHER_HTTP_LISTEN="+r.addr)
	text = regexp.MustCompile(`DISPATCHER_MQTT_URL=.*`).ReplaceAllString(text, "DISPATCHER_MQTT_URL="+brokerURL)
	r.writeFile(configFile, text+changedLine, 0o644)
}

// getPage returns the body of a successful answer of the replica, or "".
func (r replica) getPage(path string) string {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.addr+path, nil)
	if err != nil {
		return ""
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// waitUntil waits until the condition is true.
func (r replica) waitUntil(what string, condition func() bool) {
	r.t.Helper()
	await.True(r.t, r.format+": "+what, condition, func() string {
		log, _ := r.tryCommand("journalctl", "--no-pager", "-n", "30", "-u", "dispatcher")
		return log
	})
}

// expectRunning waits until the replica is ready. It checks the version that the running process and the installed program report.
func (r replica) expectRunning(version string) {
	r.t.Helper()
	r.waitUntil("ready", func() bool { return r.getPage("/readyz") != "" })
	if metrics := r.getPage("/metrics"); !strings.Contains(metrics, `dispatcher_build_info{version="`+version+`"} 1`) {
		r.t.Errorf("%s: another version than %s runs", r.format, version)
	}
	if said := r.runCommand("dispatcher", "version"); !regexp.MustCompile(`^` + version + `\ncommit [0-9a-f]{40}\ndate 20\S+Z\n$`).MatchString(said) {
		r.t.Errorf("%s: version: %q", r.format, said)
	}
}

// expectConfined checks that the process runs as its user, without capabilities, and with the limits of the unit, as far
// as this machine allows.
func (r replica) expectConfined() {
	r.t.Helper()
	var files syscall.Rlimit
	must.Succeed(r.t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	process := strings.TrimSpace(r.runCommand("systemctl", "show", "--property=MainPID", "--value", "dispatcher"))
	uid := strings.TrimSpace(r.runCommand("id", "-u", "dispatcher"))
	text := r.runCommand("cat", "/proc/"+process+"/status", "/proc/"+process+"/limits")
	for _, want := range []string{`Uid:\s+` + uid + `\s`, `CapEff:\s+0+\n`, `NoNewPrivs:\s+1\n`, fmt.Sprintf(`Max open files\s+%d\s`, min(65536, files.Max))} {
		if !regexp.MustCompile(want).MatchString(text) || uid == "0" {
			r.t.Errorf("%s: no %s:\n%s", r.format, want, text)
		}
	}
}

func (r replica) sumMetric(metric string) (sum float64) {
	for _, match := range regexp.MustCompile(`(?m)^`+metric+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(r.getPage("/metrics"), -1) {
		value, _ := strconv.ParseFloat(match[1], 64)
		sum += value
	}
	return sum
}

func (r replica) awaitHeldSlots() {
	r.t.Helper()
	r.waitUntil("a held slot", func() bool { return r.sumMetric("dispatcher_slots_held") > 0 })
}

// awaitReports waits until the replica has answered more reports, and given more grants.
func (r replica) awaitReports() {
	r.t.Helper()
	reports, grants := r.sumMetric("dispatcher_reports_total"), r.sumMetric("dispatcher_slot_grants_total")
	r.waitUntil("more reports and grants", func() bool {
		return r.sumMetric("dispatcher_reports_total") > reports && r.sumMetric("dispatcher_slot_grants_total") > grants
	})
}

// startFleet starts a simulated fleet that uses all replicas. The returned function waits until its tasks have ended,
// and fails the test if a promise was broken.
func startFleet(t *testing.T, release, broker string, replicas []replica) func() {
	t.Helper()
	dir := t.TempDir()
	runCommand(t, nil, "tar", "-xzf", release+".tar.gz", "-C", dir)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, filepath.Base(release), "dispatcher"), "simulate", "--url", "http://"+replicas[0].addr+",http://"+replicas[1].addr,
		"--mqtt-url", "mqtt://"+broker, "--via=mixed", "--credentials=own", "--pool=fleet", "--capacity=12", "--devices=60",
		"--tasks=600", "--work=1s", "--lease=10s", "--period=2s", "--silent=2%", "--duplicate=2%")
	cmd.Env = append(os.Environ(), "DISPATCHER_TOKEN="+adminToken)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	must.Succeed(t, cmd.Start())
	t.Cleanup(cancel)
	return func() {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the fleet: %v", err)
		}
		t.Logf("the fleet:\n%s", said.String())
	}
}

// expectRemoved removes the package, and checks what stays.
func (r replica) expectRemoved() {
	r.t.Helper()
	kept := configFile
	if r.format == "rpm" {
		kept += ".rpmsave"
		r.runCommand("rpm", "--dbpath", rpmDatabase, "--erase", "dispatcher")
	} else {
		r.runCommand("dpkg", "--remove", "dispatcher")
	}
	if r.getPage("/healthz") != "" || r.hasFile("/usr/bin/dispatcher") || r.hasFile("/usr/lib/systemd/system/dispatcher.service") {
		r.t.Errorf("%s: the removed program still runs or exists", r.format)
	}
	if !strings.HasSuffix(r.readFile(kept), changedLine) || !r.hasFile(secretsDir+"/postgres_dsn") {
		r.t.Errorf("%s: the configuration is lost", r.format)
	}
	if r.format == "deb" {
		r.runCommand("dpkg", "--purge", "dispatcher")
		if r.hasFile("/etc/dispatcher") {
			r.t.Error("a purge leaves the secrets")
		}
	}
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// startDev runs `dispatcher dev` on free ports. It returns the environment for the other commands.
func startDev(t *testing.T, data string, flags ...string) (*runningProgram, []string) {
	t.Helper()
	d := startProgram(t, nil, append([]string{"dev", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0", "--data", data}, flags...)...)
	environ := []string{
		"DISPATCHER_URL=" + d.waitForOutput(t, `HTTP\s+(http://\S+)`),
		"DISPATCHER_MQTT_URL=" + d.waitForOutput(t, `MQTT\s+(mqtt://\S+)`),
	}
	for variable, name := range map[string]string{"DISPATCHER_TOKEN": "admin-token", "DISPATCHER_FLEET_TOKEN": "fleet-token"} {
		token, err := os.ReadFile(filepath.Join(data, name))
		must.Succeed(t, err)
		environ = append(environ, variable+"="+string(bytes.TrimSpace(token)))
	}
	return d, environ
}

func TestSimulateAgainstDev(t *testing.T) {
	t.Parallel()
	d, environ := startDev(t, t.TempDir(), "--report-period", "1s")
	code, stdout, stderr := runProgram(t, environ, "simulate", "--devices", "60", "--capacity", "10", "--tasks", "150", "--via", "mixed",
		"--work", "50ms", "--lease", "3s", "--period", "1s", "--silent", "5%", "--timeout", "2m", "--seed", "7")
	if code != 0 {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	for pattern, want := range map[string][2]int{ // minimum and maximum
		`tasks (\d+)`: {150, 150}, `ended (\d+)`: {150, 150}, `high-water mark (\d+) of 10`: {1, 10},
		`(\d+) over-limit`: {0, 0}, `(\d+) tasks lost`: {0, 0}, `(\d+) differ`: {0, 0}, `(\d+) silent`: {1, 20},
	} {
		found := regexp.MustCompile(pattern).FindStringSubmatch(stdout)
		if found == nil {
			t.Errorf("the summary lacks %s:\n%s", pattern, stdout)
			continue
		}
		if n, err := strconv.Atoi(found[1]); err != nil || n < want[0] || n > want[1] {
			t.Errorf("%s: %s, want %d to %d", pattern, found[1], want[0], want[1])
		}
	}
	if code := d.signalAndWait(t, syscall.SIGINT); code != 0 {
		t.Errorf("dev: exit %d after Ctrl-C", code)
	}
}

// TestIdleFleetAgainstDev runs an idle fleet with the fleet token, which registers the devices, and
// with own tokens of the devices.
func TestIdleFleetAgainstDev(t *testing.T) {
	t.Parallel()
	_, environ := startDev(t, t.TempDir())
	for _, credentials := range []string{"fleet", "own"} {
		code, stdout, stderr := runProgram(t, environ, "simulate", "--idle", "--devices", "60", "--period", "2s", "--timeout", "3s",
			"--prefix", credentials+"-", "--credentials", credentials, "--connections", "20")
		if code != 0 {
			t.Errorf("%s: exit %d\n%s\n%s", credentials, code, stdout, stderr)
		}
		for _, want := range []string{`30 reports/s wanted`, `reports    ([5-9]|1[0-2])\d in 3`, `answers    none \d+\n`, `errors     0`, `times      p50 \S+ms, p99`} {
			if !regexp.MustCompile(want).MatchString(stdout) {
				t.Errorf("%s: the summary lacks %q:\n%s", credentials, want, stdout)
			}
		}
		if !regexp.MustCompile(`\d+ reports/s: none \d+  p50`).MatchString(stderr) {
			t.Errorf("%s: no progress line in %s", credentials, stderr)
		}
	}
}

// TestDemonstrationFillsItsSlotsAndNoMore checks that the fleet uses most slots and never more than
// the capacity. On a busy machine, some slots are always between two devices.
func TestDemonstrationFillsItsSlotsAndNoMore(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for range 2 { // the second run continues with the data of the first run
		d, _ := startDev(t, data, "--simulate", "80")
		d.waitForOutput(t, `held [3-6]\d/60`)
		if code := d.signalAndWait(t, syscall.SIGINT); code != 0 {
			t.Errorf("exit %d after Ctrl-C", code)
		}
		d.waitForOutput(t, `at most ([3-6]\d) devices at once, limit 60, never over`)
	}
}

func TestDevNamesTheExplicitPortThatIsTaken(t *testing.T) {
	t.Parallel()
	d, _ := startDev(t, t.TempDir())
	address := d.waitForOutput(t, `HTTP\s+http://(\S+)`)
	code, _, stderr := runProgram(t, nil, "dev", "--listen", address, "--mqtt-listen", "127.0.0.1:0")
	if code != 1 || !bytes.Contains([]byte(stderr), []byte(address)) {
		t.Errorf("exit %d, %s; want 1 and the address", code, stderr)
	}
}

// healthcheck finds the dispatcher dev of this folder, as the other commands do.
func TestHealthcheckFindsDev(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	d, _ := startDev(t, filepath.Join(folder, devData))
	check := func() (int, string) {
		cmd := programCommand(t, nil, "healthcheck")
		cmd.Dir = folder
		text, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(text)
	}
	if code, said := check(); code != 0 {
		t.Errorf("exit %d: %s", code, said)
	}
	d.signalAndWait(t, syscall.SIGTERM)
	if code, said := check(); code != exitFailure {
		t.Errorf("exit %d after its end: %s", code, said)
	}
}

// If the user configured nothing, the fleet uses the running dispatcher dev, also from another
// folder and with another data folder.
func TestSimulateFindsDev(t *testing.T) {
	t.Parallel()
	d, _ := startDev(t, filepath.Join(t.TempDir(), "elsewhere"), "--report-period", "1s")
	for _, flags := range [][]string{
		{"--tasks", "8", "--via", "mixed", "--work", "20ms", "--period", "1s"},
		{"--idle", "--period", "1s", "--timeout", "2s"},
	} {
		cmd := programCommand(t, nil, append([]string{"simulate", "--devices", "4"}, flags...)...)
		cmd.Env = d.cmd.Env
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("simulate %s: %v\n%s", flags, err, said)
		}
	}
}

// The user gives an address and no token. The simulation must ask for the tokens, and must not send the tokens of the running dev to this
// address.
func TestSimulateSendsNoGivenTokenToDev(t *testing.T) {
	t.Parallel()
	d, _ := startDev(t, t.TempDir())
	cmd := programCommand(t, nil, "simulate", "--devices", "1", "--url", "http://127.0.0.1:1", "--timeout", "1s")
	cmd.Env = d.cmd.Env
	if said, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(said), "DISPATCHER_FLEET_TOKEN") {
		t.Errorf("%v: %s; want the missing tokens named", err, said)
	}
}

// With --redis=auto, dev uses a redis-server of its own, which ends with dev, even if dev is killed. Without a redis-server, it uses the
// in-process Redis.
func TestDevStartsAPrivateRedis(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		d, environ := startDev(t, t.TempDir(), "--redis=auto")
		d.waitForOutput(t, `\(SQLite, a private (/\S*/redis-server), embedded`)
		if code, stdout, stderr := runProgram(t, environ, "pools", "create", "p", "--capacity", "7"); code != 0 {
			t.Errorf("exit %d: %s%s", code, stdout, stderr)
		}
		servers := privateRedisOf(t, d.cmd.Process.Pid)
		if len(servers) != 1 {
			t.Fatalf("private servers: %v, want one", servers)
		}
		d.signalAndWait(t, signal)
		await.True(t, fmt.Sprintf("the end of redis-server %d after %s", servers[0], signal), func() bool {
			return len(privateRedisOf(t, d.cmd.Process.Pid)) == 0 && !processExists(servers[0])
		})
	}
	d, _ := startDev(t, t.TempDir(), "--redis=auto")
	must.Succeed(t, syscall.Kill(privateRedisOf(t, d.cmd.Process.Pid)[0], syscall.SIGKILL))
	d.waitForOutput(t, `(private redis-server has ended)`)
	d = startProgram(t, []string{"PATH=" + t.TempDir()}, "dev", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0", "--redis=auto")
	d.waitForOutput(t, `(no redis-server)`)
	d.waitForOutput(t, `\(SQLite, (in-process Redis), embedded`)
	if code, _, stderr := runProgram(t, nil, "dev", "--redis=own"); code != 2 || !strings.Contains(stderr, "--redis") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// privateRedisOf returns the process ids of the redis-servers that the process started.
func privateRedisOf(t *testing.T, parentPID int) (redisPIDs []int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "pid=,comm=", "--ppid", strconv.Itoa(parentPID)).Output()
	if err != nil && len(out) > 0 {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if pid, name, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(name, "redis-server") {
			n, err := strconv.Atoi(pid)
			must.Succeed(t, err)
			redisPIDs = append(redisPIDs, n)
		}
	}
	return redisPIDs
}

func processExists(pid int) bool { return syscall.Kill(pid, 0) == nil }

// The command in the banner works when it is pasted, whether or not the PATH leads to the program.
func TestTheBannerCanBePasted(t *testing.T) {
	t.Parallel()
	for _, path := range []string{os.Getenv("PATH"), filepath.Dir(programPath) + ":" + os.Getenv("PATH")} {
		d := startProgram(t, []string{"PATH=" + path}, "dev", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0")
		line := d.waitForOutput(t, `In another shell, here: (.*) \(docs`)
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", line)
		cmd.Dir, cmd.Env = d.cmd.Dir, d.cmd.Env
		if said, err := cmd.CombinedOutput(); err != nil || !regexp.MustCompile(`capacity +60\n`).Match(said) {
			t.Errorf("%s: %v\n%s", line, err, said)
		}
		if named := strings.HasPrefix(line, "dispatcher "); named != strings.HasPrefix(path, filepath.Dir(programPath)) {
			t.Errorf("with PATH %s: %s", path, line)
		}
	}
}

// The README adds the folder of the built program to the PATH before it uses the name of the
// program.
func TestReadmeCommandsFindTheProgram(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	must.Succeed(t, err)
	before, _, found := strings.Cut(string(text), "\ndispatcher ")
	if !found || !strings.Contains(before, "\nexport PATH=\"$PWD/bin:$PATH\"") {
		t.Error("a command of dispatcher comes before the PATH that leads to bin/dispatcher")
	}
}

// A fleet whose credentials are refused reports an error instead of an empty summary.
func TestSimulateWithWrongCredentials(t *testing.T) {
	t.Parallel()
	_, environ := startDev(t, t.TempDir())
	for i, pair := range environ {
		if strings.HasPrefix(pair, "DISPATCHER_FLEET_TOKEN=") {
			environ[i] = "DISPATCHER_FLEET_TOKEN=wrong-token-of-the-fleet"
		}
	}
	for _, via := range []string{"http", "mqtt"} {
		code, stdout, stderr := runProgram(t, environ, "simulate", "--devices", "2", "--via", via, "--timeout", "5s")
		if code != exitFailure || stdout != "" || !strings.Contains(stderr, "refuses the devices' credentials") {
			t.Errorf("%s: exit %d, %q, %s", via, code, stdout, stderr)
		}
	}
}

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/doctor"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestDoctorTellsHowToMend(t *testing.T) {
	t.Parallel()
	redis := servers.StartRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	environ := []string{"DISPATCHER_POSTGRES_DSN=" + sharedPostgres.NewLedger(t), "DISPATCHER_REDIS_URL=" + redis.URL()}
	code, stdout, stderr := runProgram(t, environ, "doctor")
	if code != 1 || !strings.Contains(stderr, "1 check failed") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{"failed   redis eviction", "-> set maxmemory-policy noeviction", "ok       postgres durability", "ok       indexes"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	environ[1] = "DISPATCHER_REDIS_URL=" + servers.StartRedis(t).URL()
	code, stdout, stderr = runProgram(t, environ, "doctor", "--output", "json", "--report-period", "20s")
	var list []doctor.Finding
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != 0 || len(list) < 20 {
		t.Errorf("exit %d, %v, %d findings: %s", code, err, len(list), stderr)
	}
}

func TestDoctorOfSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ, args []string
		code          int
		says          string
	}{
		"none":          {nil, nil, 1, "missing: postgres_dsn, redis_url"},
		"misspelt":      {[]string{"DISPATCHER_HTTP_LISEN=x"}, nil, 1, "DISPATCHER_HTTP_LISEN: no such setting"},
		"out of bounds": {nil, []string{"--report-period", "1ms"}, 1, "report_period"},
		"no such form":  {nil, []string{"--output", "xml"}, 2, ""},
	} {
		if code, stdout, stderr := runProgram(t, c.environ, append([]string{"doctor"}, c.args...)...); code != c.code || !strings.Contains(stdout, c.says) {
			t.Errorf("%s: exit %d, want %d: %s%s", name, code, c.code, stdout, stderr)
		}
	}
}

// If the environment names no servers, doctor examines the dispatcher dev of this folder.
func TestDoctorOfADev(t *testing.T) {
	t.Parallel()
	dev := startProgram(t, nil, "dev", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0")
	dev.waitForOutput(t, `HTTP  (\S+)`)
	for _, args := range [][]string{{"doctor"}, {"doctor", "--data", ".dispatcher"}} {
		cmd := programCommand(t, nil, args...)
		cmd.Dir, cmd.Env = dev.cmd.Dir, dev.cmd.Env
		out, err := cmd.Output()
		for _, want := range []string{"the dispatcher dev that runs here", "ok     dev          ready", "free in " + filepath.Join(dev.cmd.Dir, ".dispatcher")} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q: %v\n%s", args, want, err, out)
			}
		}
	}
}

// doctor finds the data folder of a dispatcher dev from any folder.
func TestDoctorOfADevElsewhere(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "elsewhere")
	dev, _ := startDev(t, data)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"doctor"}, 0, "free in " + data},
		{[]string{"doctor", "--data", data}, 0, "free in " + data},
		{[]string{"doctor", "--data", "nowhere"}, 1, "-> start it: dispatcher dev --data nowhere"},
	} {
		cmd := programCommand(t, nil, c.args...)
		cmd.Env = dev.cmd.Env
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", c.args, code, c.code, c.says, out)
		}
	}
}

package topology

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/app"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

const unitFile = "deploy/systemd/dispatcher.service"

// readUnit returns the values of each directive of the systemd unit, in order.
func readUnit(t *testing.T) map[string][]string {
	t.Helper()
	values := map[string][]string{}
	for line := range strings.Lines(string(readRepoFile(t, unitFile))) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			values[name] = append(values[name], value)
		}
	}
	return values
}

func TestUnitFitsTheProgram(t *testing.T) {
	t.Parallel()
	u := readUnit(t)
	words := strings.Fields(strings.Join(u["ExecStart"], " "))
	if len(words) != 2 || words[0] != "dispatcher" || !slices.Contains(subcommands(t), words[1]) {
		t.Errorf("ExecStart=%q", words)
	}
	var credentials []string
	for _, credential := range u["LoadCredential"] {
		name, file, _ := strings.Cut(credential, ":")
		credentials = append(credentials, name)
		if filepath.Base(file) != name {
			t.Errorf("LoadCredential=%s", credential)
		}
	}
	for _, assignment := range u["Environment"] {
		variable, value, _ := strings.Cut(assignment, "=")
		name, inCredentials := strings.CutPrefix(value, "%d/")
		if !isKnownVariable(variable) || !inCredentials || !slices.Contains(credentials, name) {
			t.Errorf("Environment=%s: an unknown setting, or no credential", assignment)
		}
	}
	if len(u["Environment"]) != len(credentials) || len(credentials) == 0 {
		t.Errorf("%d variables for %d credentials", len(u["Environment"]), len(credentials))
	}
	for name, want := range map[string]string{"ProcSubset": "pid", "MemoryMax": "4G", "TasksMax": "512"} {
		if !slices.Equal(u[name], []string{want}) {
			t.Errorf("%s=%s, want %s", name, u[name], want)
		}
	}
	if stop, err := time.ParseDuration(u["TimeoutStopSec"][0]); err != nil || stop <= 10*time.Second {
		t.Errorf("TimeoutStopSec=%s, want more than the 10 s that ending may take", u["TimeoutStopSec"])
	}
	if !slices.Equal(u["RestartPreventExitStatus"], []string{"2"}) || !slices.Equal(u["Restart"], []string{"always"}) {
		t.Errorf("Restart=%s, but for %s", u["Restart"], u["RestartPreventExitStatus"])
	}
}

// TestUnitEnvironmentStarts checks the settings in the file next to the systemd unit: together with the secrets,
// `serve` accepts them.
func TestUnitEnvironmentStarts(t *testing.T) {
	t.Parallel()
	environ := []string{
		"DISPATCHER_POSTGRES_DSN=postgres://u:p@127.0.0.1/d", "DISPATCHER_REDIS_URL=redis://127.0.0.1",
		"DISPATCHER_MQTT_PASSWORD=secret", "DISPATCHER_ADMIN_TOKEN=sixteen-characters",
	}
	for name, value := range parseDotenv(readRepoFile(t, "deploy/systemd/dispatcher.env")) {
		if !isKnownVariable(name) {
			t.Errorf("%s is no setting", name)
		}
		environ = append(environ, name+"="+value)
	}
	config, err := app.Load(nil, environ, nil)
	if err != nil || config.CheckComplete() != nil {
		t.Errorf("%v, %v", err, config.CheckComplete())
	}
}

// TestUnitIsVerified checks the unit with systemd's own program, which needs no running systemd.
func TestUnitIsVerified(t *testing.T) {
	t.Parallel()
	analyze := servers.RequireProgram(t, "systemd-analyze")
	// The dispatcher need not be installed for this check: the unit names another program that exists.
	text := strings.ReplaceAll(string(readRepoFile(t, unitFile)), "ExecStart=dispatcher", "ExecStart="+analyze)
	file := filepath.Join(t.TempDir(), "dispatcher.service")
	writeFile(t, file, text)
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// A score of 0 means fully confined, and 10 means not confined at all. The threshold is given in tenths.
	if out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", "--no-pager", file).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

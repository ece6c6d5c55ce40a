package topology

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestHealthCheckShowsNoPassword checks the health check of the broker: the password is not in the arguments of a
// process, because all users of a machine can read these.
func TestHealthCheckShowsNoPassword(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	stub := "#!/bin/sh\necho \"$@\" >\"" + folder + "/arguments\"\ncat \"$XDG_CONFIG_HOME/mosquitto_sub\" >\"" + folder + "/options\"\n"
	must.Succeed(t, os.WriteFile(filepath.Join(folder, "mosquitto_sub"), []byte(stub), 0o755))
	script := exec.CommandContext(t.Context(), "sh", filepath.Join(root, "deploy", "mosquitto", "healthcheck.sh"))
	script.Env = []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "DISPATCHER_MQTT_PASSWORD=a secret", "TMPDIR=" + folder}
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	arguments, err := os.ReadFile(filepath.Join(folder, "arguments"))
	if err != nil || strings.Contains(string(arguments), "secret") {
		t.Errorf("arguments %s, %v", arguments, err)
	}
	options, err := os.ReadFile(filepath.Join(folder, "options"))
	if err != nil || string(options) != "-P a secret\n" {
		t.Errorf("options %q, %v", options, err)
	}
	if left, _ := filepath.Glob(filepath.Join(folder, "tmp.*")); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

// TestInnerListenersHaveAnAddress checks the port of the broker for the dispatchers: by default it is not open to
// other hosts.
func TestInnerListenersHaveAnAddress(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"dynsec", "passwords"} {
		config, err := os.ReadFile(filepath.Join(root, "deploy", "mosquitto", variant, "mosquitto.conf"))
		if err != nil || !strings.Contains(string(config), "\nlistener 1884 127.0.0.1\n") {
			t.Errorf("%s: the inner listener has no address: %v", variant, err)
		}
	}
}

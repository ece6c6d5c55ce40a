package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// writeTemp writes content into a new file and returns its path.
func writeTemp(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// startDevice starts a device program of the kit in Python with this token. The returned function ends the program. args are further options
// of the program.
func startDevice(t *testing.T, name, server, token string, args ...string) (kill func()) {
	t.Helper()
	args = append([]string{"../../examples/devices/" + name + "/device.py", "--server", server, "--device", "d-1", "--token-file", writeTemp(t, token), "--journal", filepath.Join(t.TempDir(), "journal"), "--period", "1"}, args...)
	device := exec.CommandContext(t.Context(), "/usr/bin/python3", args...) // the Python of the system has paho
	must.Succeed(t, device.Start())
	return func() {
		_ = device.Process.Kill()
		_ = device.Wait()
	}
}

// devices check plays one scenario to a device that sends a wrong token.
func TestDevicesCheckFindsAWrongToken(t *testing.T) {
	t.Parallel()
	junit := filepath.Join(t.TempDir(), "junit.xml")
	p := startProgram(t, nil, "devices", "check", "--listen", "127.0.0.1:0", "--token-file", writeTemp(t, "right\n"), "--only", "a task", "--junit", junit)
	defer startDevice(t, "python-http", "http://"+p.waitForOutput(t, `\(listen (\S+),`), "wrong\n")()
	p.waitForOutput(t, `\n4s left: a task\n`)
	p.waitForOutput(t, `\nfailed +credential +the device sent no token, or another token .*\n +contract: Over HTTP a device sends .*\n +\{"id": `)
	p.waitForOutput(t, `\npassed +starts\n`)
	p.waitForOutput(t, `dispatcher: 1 rule failed`)
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit %d", code)
	}
	written, err := os.ReadFile(junit)
	for _, part := range []string{`<testcase name="starts"></testcase>`, `<testcase name="credential"><failure>the device sent`, `<testcase name="lease-end"><skipped>`} {
		if !strings.Contains(string(written), part) {
			t.Errorf("the JUnit file lacks %s: %v\n%s", part, err, written)
		}
	}
}

// devices check serves HTTP and MQTT over TLS.
func TestDevicesCheckOverTLS(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler()) // its certificate is for 127.0.0.1
	t.Cleanup(secure.Close)
	pair := secure.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must.Succeed(t, err)
	certFile := writeTemp(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	keyFile := writeTemp(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	for name, scheme := range map[string]string{"python-http": "https", "python-mqtt": "mqtts"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProgram(t, nil, "devices", "check", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0", "--tls-cert", certFile, "--tls-key", keyFile, "--only", "a task")
			addresses := map[string]string{"https": p.waitForOutput(t, `\(listen (\S+),`), "mqtts": p.waitForOutput(t, `mqtt-listen (\S+),`)}
			defer startDevice(t, name, scheme+"://"+addresses[scheme], "any\n", "--ca-file", certFile)()
			p.waitForOutput(t, `\npassed +starts\n`)
			if <-p.ended; p.cmd.ProcessState.ExitCode() != 0 {
				t.Errorf("exit %d", p.cmd.ProcessState.ExitCode())
			}
		})
	}
}

// Without a device, devices check prints the rules as JSON. The state of each rule is not_seen or not_checkable.
func TestDevicesCheckFailsWithoutADevice(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := runProgram(t, nil, "devices", "check", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0", "--wait", "1ms", "--json")
	var findings []map[string]string
	if err := json.Unmarshal([]byte(stdout), &findings); err != nil || code != 1 || !strings.Contains(stderr, "no report of the device arrived") {
		t.Fatalf("exit %d, %v, %s", code, err, stderr)
	}
	for _, f := range findings {
		if f["state"] != "not_seen" && f["state"] != "not_checkable" || f["rule"] == "" || f["sentence"] == "" {
			t.Errorf("finding %v", f)
		}
	}
}

func TestDevicesCheckRefusesWrongFlags(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"--listen nowhere":             "--listen: listen tcp",
		"--system-listen 0.0.0.0:0":    `--system-listen: "0.0.0.0:0": must name the address`,
		"--token-file /none":           `for "--token-file" flag: open /none`,
		"--tls-cert /none --tls-key x": "--tls-cert, --tls-key: open /none",
		"--tls-cert x":                 "missing [tls-key]",
		"--output xml":                 `--output: "xml" is neither`,
	} {
		args := append([]string{"devices", "check", "--wait", "1ms", "--listen", "127.0.0.1:0"}, strings.Fields(flags)...)
		code, _, stderr := runProgram(t, nil, args...)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s", flags, code, stderr)
		}
	}
}

// TestDevicesCheckNamesItsScenarios checks that a text of --only which names no scenario is refused at once, with the names.
func TestDevicesCheckNamesItsScenarios(t *testing.T) {
	t.Parallel()
	p := startProgram(t, nil, "devices", "check", "--listen", "127.0.0.1:0", "--only", "nonsense")
	p.waitForOutput(t, `no scenario has "nonsense" in its name: a task, .*a lease that ends, `)
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit %d", code)
	}
}

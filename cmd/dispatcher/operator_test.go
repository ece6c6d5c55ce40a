package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// commandRunner is the workplace of an operator: a dispatcher dev, and an environment with which the
// commands use it.
type commandRunner struct {
	*testing.T
	url, token, fleetToken string
	environ                []string
	dir                    string // folder in which commands run
	data                   string // data folder of the dispatcher dev
}

// newCommandRunner starts a dispatcher dev for one test.
func newCommandRunner(t *testing.T) *commandRunner {
	t.Helper()
	data := t.TempDir()
	_, environ := startDev(t, data, "--report-period", "1s")
	d := &commandRunner{T: t, dir: t.TempDir(), data: data}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "DISPATCHER_URL":
			d.url = value
		case "DISPATCHER_TOKEN":
			d.token = value
		case "DISPATCHER_FLEET_TOKEN":
			d.fleetToken = value
		}
	}
	d.environ = []string{"DISPATCHER_URL=" + d.url, "DISPATCHER_TOKEN=" + d.token}
	return d
}

type commandResult struct {
	*testing.T
	command      string
	code         int
	out, errText string
}

// runCommand runs a command. input is its standard input.
func (d *commandRunner) runCommand(input string, args ...string) commandResult {
	d.Helper()
	cmd := programCommand(d.T, d.environ, args...)
	cmd.Dir = d.dir
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		d.Fatal(err)
	}
	return commandResult{d.T, strings.Join(args, " "), cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// run runs a command whose words contain no quotes. The command must succeed.
func (d *commandRunner) run(line string, extraArgs ...string) string {
	d.Helper()
	return d.runCommand("", append(strings.Fields(line), extraArgs...)...).expectExit(0).out
}

func (o commandResult) expectExit(code int) commandResult {
	o.Helper()
	if o.code != code {
		o.Fatalf("%s: exit %d, want %d\n%s%s", o.command, o.code, code, o.out, o.errText)
	}
	return o
}

// expectNoErrors expects nothing on standard error.
func (o commandResult) expectNoErrors() {
	o.Helper()
	if o.errText != "" {
		o.Errorf("%s: says %q", o.command, o.errText)
	}
}

// expectErrors expects words on standard error.
func (o commandResult) expectErrors(words ...string) commandResult {
	o.Helper()
	for _, w := range words {
		if !strings.Contains(o.errText, w) {
			o.Errorf("%s: %q does not say %q", o.command, o.errText, w)
		}
	}
	return o
}

// writeFile writes a file into the folder in which commands run.
func (d *commandRunner) writeFile(name, content string) string {
	d.Helper()
	must.Succeed(d, os.WriteFile(filepath.Join(d.dir, name), []byte(content), 0o600))
	return name
}

// decodeOutput decodes the output of a command with --output json.
func (d *commandRunner) decodeOutput(into any, line string, extraArgs ...string) {
	d.Helper()
	out := d.run(line+" --output json", extraArgs...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		d.Fatalf("%s: %v in %s", line, err, out)
	}
}

// sendReport sends a report of a device with the fleet token.
func (d *commandRunner) sendReport(device, body string) map[string]any {
	d.Helper()
	request, err := http.NewRequestWithContext(d.Context(), http.MethodPost, d.url+"/v1/devices/"+device+"/report", strings.NewReader(body))
	must.Succeed(d, err)
	request.Header.Set("Authorization", "Bearer "+d.fleetToken)
	response, err := http.DefaultClient.Do(request)
	must.Succeed(d, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		d.Fatalf("report of %s: %d %s %v", device, response.StatusCode, text, err)
	}
	var reply map[string]any
	must.Succeed(d, json.Unmarshal(text, &reply))
	return reply
}

// endTask lets a device do one task with this result.
func (d *commandRunner) endTask(device, status string) {
	d.Helper()
	task, ok := d.sendReport(device, `{"id":"1"}`)["task"].(map[string]any)
	if !ok {
		d.Fatalf("%s was granted nothing", device)
	}
	d.sendReport(device, fmt.Sprintf(`{"id":"2","accept":false,"results":[{"task":%.0f,"token":%.0f,"status":%q,"error":"as told"}]}`, task["id"], task["token"], status))
}

// maskVariableText replaces the parts of a text that differ from run to run.
func maskVariableText(text string) string {
	text = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`).ReplaceAllString(text, "TIME")
	text = regexp.MustCompile(`[A-Za-z0-9_-]{43}`).ReplaceAllString(text, "SECRET")
	return regexp.MustCompile(`(?m) +$| {2,}`).ReplaceAllStringFunc(text, func(spaces string) string { return "  "[:min(len(spaces), 2)] })
}

// expectOutput compares the output of a command with want.
func (d *commandRunner) expectOutput(line, want string, extraArgs ...string) {
	d.Helper()
	got := maskVariableText(d.run(line, extraArgs...))
	if diff := cmp.Diff(strings.TrimLeft(want, "\n"), got); diff != "" {
		d.Errorf("%s (-want +got):\n%s", line, diff)
	}
}

// eventually polls until isTrue returns true.
func (d *commandRunner) eventually(what string, isTrue func() bool) {
	d.Helper()
	await.True(d.T, what, isTrue)
}

// TestATokenInClearIsWarnedOf checks a command that sends its token over http:// to another machine: it writes one warning, without the token.
// The address 0.0.0.0 leads to this machine, but a command does not know to which machine an address leads.
func TestATokenInClearIsWarnedOf(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.runCommand("", "pools", "list").expectExit(0).expectNoErrors()
	result := d.runCommand("", "pools", "list", "--url", strings.Replace(d.url, "127.0.0.1", "0.0.0.0", 1)).expectExit(0).expectErrors("Warning: the token is sent to 0.0.0.0:", "https://")
	if strings.Count(result.errText, "\n") != 1 || strings.Contains(result.errText, d.token) {
		t.Errorf("standard error: %q", result.errText)
	}
	for address, want := range map[string]bool{
		"http://dispatch.example:8080": true, "http://10.0.0.1": true, "http://[2001:db8::1]:80": true, "https://dispatch.example": false,
		"http://localhost:8080": false, "http://127.0.0.2": false, "http://[::1]:8080": false, "http://[::ffff:127.0.0.1]": false,
	} {
		var errs bytes.Buffer
		(&console{errs: &errs}).warnOfPlainHTTP(address)
		if got := errs.Len() > 0; got != want {
			t.Errorf("%s: warning %t, want %t", address, got, want)
		}
	}
}

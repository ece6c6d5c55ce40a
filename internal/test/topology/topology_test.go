package topology

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// These flags are set by `make topology`.
var (
	fullSize = flag.Bool("whole", false, "run the fleet at its full size, and show it") //nolint:gochecknoglobals // a flag of the test
	binary   = flag.String("binary", "", "the dispatcher; built if empty")              //nolint:gochecknoglobals // a flag of the test
)

// TestTopology does what `docker compose --profile fleet up` does, but without Docker: it uses the files, commands,
// variables and health checks of docker-compose.yml with the programs of this machine. The test fails if the exit
// status of the fleet is not 0.
func TestTopology(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	if *fullSize {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
	}
	p := newLocalDeployment(t, loadComposition(t, newLookup(t)), programPath(t))
	p.startService("dispatcher-1")
	p.startService("dispatcher-2")
	p.runFleet(ctx)
	for _, name := range []string{"dispatcher-1", "dispatcher-2"} {
		for _, transport := range []string{"http", "mqtt"} {
			if p.reportCount(name, transport) == 0 {
				t.Errorf("%s answered no report over %s: the fleet is not spread over both", name, transport)
			}
		}
	}
	for _, name := range []string{"dispatcher-1", "dispatcher-2"} {
		process := p.processes[name]
		process.Stop()
		if code := process.ExitCode(); code != 0 {
			t.Errorf("%s ended with status %d:\n%s", name, code, process.Output())
		}
	}
}

// newLookup returns a function that looks up variables as compose does: first in the environment, then in the file
// .env that `make env` creates. Without -whole, the fleet is smaller.
func newLookup(t *testing.T) func(string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), ".env")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/env"), file).CombinedOutput(); err != nil {
		t.Fatalf("scripts/env: %v\n%s", err, out)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	values := parseDotenv(content)
	small := map[string]string{
		"FLEET_DEVICES": "60", "FLEET_TASKS": "150", "FLEET_WORK": "500ms", "FLEET_LEASE": "4s", "REPORT_PERIOD": "2s",
	}
	return func(name string) string {
		if *fullSize {
			return cmp.Or(os.Getenv(name), values[name])
		}
		return cmp.Or(small[name], values[name])
	}
}

// programPath returns the path of the dispatcher. Another test compares the build flags with those of the image.
func programPath(t *testing.T) string {
	t.Helper()
	if *binary != "" {
		return *binary
	}
	program := servers.Program{Race: true}
	return program.Path(t)
}

func (p *localDeployment) runFleet(ctx context.Context) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	var said bytes.Buffer
	cmd := p.serviceCommand(ctx, "fleet", slices.Concat(readDockerfile(p.t).commandWords("ENTRYPOINT"), p.compose.Services["fleet"].Command)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdout, cmd.Stderr = &said, &said
	if *fullSize {
		both := io.MultiWriter(&said, os.Stderr)
		cmd.Stdout, cmd.Stderr = both, both
	}
	err := cmd.Run()
	if !*fullSize {
		p.t.Logf("the fleet:\n%s", said.String())
	}
	switch {
	case ctx.Err() != nil:
		p.t.Fatalf("interrupted: %v", context.Cause(ctx))
	case err != nil:
		p.t.Errorf("the fleet's judgement: %v", err)
	}
}

// reportCount returns how many reports over this transport a replica has answered, with any reason.
func (p *localDeployment) reportCount(name, transport string) (sum float64) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.address(name)+"/metrics", nil)
	p.must(err)
	response, err := http.DefaultClient.Do(request)
	p.must(err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	p.must(err)
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^dispatcher_reports_total\{[^}]*transport="%s"[^}]*\} (\S+)$`, transport))
	for _, match := range line.FindAllSubmatch(content, -1) {
		n, err := strconv.ParseFloat(string(match[1]), 64)
		p.must(err)
		sum += n
	}
	return sum
}

package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/testservers"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		code           int
		stdout, stderr string // parts
	}{
		"version":                              {0, "v0.0.0-test\n", ""},
		"--version":                            {0, "v0.0.0-test", ""},
		"":                                     {0, "Operate:", ""},
		"help serve":                           {0, "DISPATCHER_HTTP_LISTEN", ""},
		"completion bash":                      {0, "bash completion", ""},
		"nope":                                 {2, "", "nope"},
		"--nope":                               {2, "", "--nope"},
		"serve --nope":                         {2, "", "--nope"},
		"version x":                            {2, "", "x"},
		"migrate nope":                         {2, "", "nope"},
		"migrate up x":                         {2, "", "x"},
		"migrate up":                           {2, "", "postgres_dsn"},
		"tokens create":                        {2, "", "--name"},
		"tokens create --name x --role root":   {2, "", "--role"},
		"tokens create --name x --role viewer": {1, "", "dispatcher dev"},
		"serve":                                {2, "", "postgres_dsn"},
		"serve --reap-interval 5":              {2, "", "reap_interval"},
		"serve --config none.yaml":             {2, "", "--config"},
		"simulate":                             {2, "", "DISPATCHER_FLEET_TOKEN"},
		"simulate --silent 101%":               {2, "", "--silent"},
		"simulate --silent x":                  {2, "", "--silent"},
		"simulate --via pigeon":                {2, "", "--via"},
		"simulate --credentials none":          {2, "", "--credentials"},
		"simulate --devices x":                 {2, "", "--devices"},
		"pools get":                            {2, "", "1 arg"},
		"pools nope":                           {2, "", "nope"},
		"pools list --output xml":              {2, "", "--output"},
		"pools list":                           {1, "", "dispatcher dev"},
		"pools list --url none":                {2, "", "--url"},
		"pools list --url http://127.0.0.1:1":  {1, "", "start one with `dispatcher dev`"},
		"pools set p":                          {1, "", "dispatcher dev"},
		"pools create p --window x":            {2, "", "--window"},
		"pools release p 1":                    {2, "", "--reason"},
		"pools apply":                          {2, "", "--file"},
		"batches get x":                        {2, "", "number"},
		"batches create --pool p":              {2, "", "file device tag"},
		"batches create --device d":            {2, "", "--pool"},
		"tasks why 0":                          {2, "", "number"},
		"dev --simulate -1":                    {2, "", "--simulate"},
		"dev --listen 300.0.0.1:1 --data d":    {1, "", "--listen"},
		"dev --data /dev/null":                 {1, "", "/dev/null"},
		"healthcheck --url http://127.0.0.1:1": {1, "", "127.0.0.1:1"},
		"healthcheck --url :":                  {2, "", "--url"},
	} {
		t.Run("dispatcher "+line, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := execute(t, nil, strings.Fields(line)...)
			if code != want.code || !strings.Contains(stdout, want.stdout) || !strings.Contains(stderr, want.stderr) {
				t.Errorf("exit %d, stdout %.300q, stderr %.300q; want %d, %q, %q", code, stdout, stderr, want.code, want.stdout, want.stderr)
			}
			if want.code != 0 && (stdout != "" || !strings.HasPrefix(stderr, "dispatcher: ")) {
				t.Errorf("a failure says %q on stdout and %q on stderr", stdout, stderr)
			}
		})
	}
}

func TestMistypedVariableIsAUsageError(t *testing.T) {
	t.Parallel()
	const secret = "Kq7vW2canaryX9pL4"
	code, _, stderr := execute(t, []string{"DISPATCHER_ADMIN_TOKN=" + secret}, "serve")
	if code != 2 || !strings.Contains(stderr, "DISPATCHER_ADMIN_TOKN") || strings.Contains(stderr, secret) {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// A file for each command holds its help and that of the commands below it.
func TestHelpIsAsWritten(t *testing.T) {
	t.Parallel()
	for _, command := range append(newRoot(nil, nil).Commands(), newRoot(nil, nil)) {
		name := "help"
		if command.HasParent() {
			name += "-" + command.Name()
		}
		if command.Name() == "completion" || command.Name() == "help" {
			continue // cobra's
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := helpOf(t, command)
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(file); err != nil || got != string(want) {
				t.Errorf("%s is not the help (go test ./cmd/dispatcher -update writes it): %v\n%s", file, err, cmp.Diff(string(want), got))
			}
		})
	}
}

func helpOf(t *testing.T, command *cobra.Command) string {
	t.Helper()
	words := strings.Fields(command.CommandPath())[1:]
	code, help, stderr := execute(t, nil, append(words, "--help")...)
	if code != 0 {
		t.Errorf("%s --help: exit %d, %s", command.CommandPath(), code, stderr)
	}
	if !command.HasParent() {
		return help
	}
	help = "$ " + command.CommandPath() + " --help\n" + help
	for _, below := range command.Commands() {
		help += "\n" + helpOf(t, below)
	}
	return help
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	environ := []string{"DISPATCHER_POSTGRES_DSN=" + shared.NewDatabase(t)}
	for _, step := range []struct{ command, want, not string }{
		{"status", "  no\n", "Z\n"},
		{"up", "applied ", "applied 0"},
		{"up", "applied 0\n", "applied 1"},
		{"status", "Z\n", "  no\n"},
		{"down", "", "applied"},
		{"status", "  no\n", ""},
		{"up", "applied 1\n", ""},
	} {
		code, stdout, stderr := execute(t, environ, "migrate", step.command)
		if code != 0 || !strings.Contains(stdout, step.want) || step.not != "" && strings.Contains(stdout, step.not) {
			t.Errorf("migrate %s: exit %d, %q, %s; want %q and no %q", step.command, code, stdout, stderr, step.want, step.not)
		}
	}
	code, _, stderr := execute(t, []string{"DISPATCHER_POSTGRES_DSN=postgres://" + testservers.FreeAddr(t) + "/x?sslmode=disable"}, "migrate", "up")
	if code != 1 || stderr == "" {
		t.Errorf("without Postgres: exit %d, %q; want 1", code, stderr)
	}
}

// The first token is made beside a server that has none in its configuration.
func TestTheFirstTokenIsMadeInTheDatabase(t *testing.T) {
	t.Parallel()
	environ := []string{"DISPATCHER_POSTGRES_DSN=" + shared.NewLedger(t), "DISPATCHER_REDIS_URL=" + testservers.Redis(t).URL(), "DISPATCHER_LOG_FORMAT=json"}
	d := start(t, environ, "serve", "--http-listen", "127.0.0.1:0")
	url := "http://" + d.says(t, `"msg":"ready","http":"([^"]+)"`)
	put := func(secret string) int {
		t.Helper()
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/v1/pools/p", strings.NewReader("{}"))
		request.Header.Set("Authorization", "Bearer "+secret)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	for args, want := range map[string]int{"--role=admin": http.StatusCreated, "--role=viewer": http.StatusForbidden, "--role=admin --valid=1ms": http.StatusUnauthorized} {
		code, secret, stderr := execute(t, environ[:1], append([]string{"tokens", "create", "--name=first"}, strings.Fields(args)...)...)
		if code != 0 || len(strings.TrimSpace(secret)) != 43 {
			t.Fatalf("%s: exit %d, %q, %s", args, code, secret, stderr)
		}
		if got := put(strings.TrimSpace(secret)); got != want {
			t.Errorf("%s: %d, want %d", args, got, want)
		}
	}
}

func TestServeEndsWithSIGTERM(t *testing.T) {
	t.Parallel()
	const secret = "Kq7vW2canaryX9pL4"
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("log_format: json\nhttp_listen: 127.0.0.1:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, []string{
		"DISPATCHER_POSTGRES_DSN=" + shared.NewLedger(t), "DISPATCHER_REDIS_URL=" + testservers.Redis(t).URL(),
		"DISPATCHER_ADMIN_TOKEN=" + secret, "DISPATCHER_FLEET_TOKEN=" + secret + "2",
	}, "serve", "--config", config)
	url := "http://" + d.says(t, `"msg":"ready","http":"([^"]+)"`)
	if code, _, stderr := execute(t, nil, "healthcheck", "--url", url); code != 0 {
		t.Errorf("healthcheck: exit %d, %s", code, stderr)
	}
	if code, _, stderr := execute(t, []string{"DISPATCHER_URL=" + url + "/"}, "healthcheck"); code != 0 {
		t.Errorf("healthcheck by DISPATCHER_URL: exit %d, %s", code, stderr)
	}
	if code := d.end(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d after SIGTERM", code)
	}
	if code, _, _ := execute(t, nil, "healthcheck", "--url", url); code != 1 {
		t.Errorf("healthcheck of none: exit %d, want 1", code)
	}
	if text := d.text(); strings.Contains(text, secret) || !strings.Contains(text, `"admin_token":"***"`) {
		t.Errorf("the log shows a secret, or no configuration")
	}
}

func TestFailingDemonstrationEndsTheServer(t *testing.T) {
	t.Parallel()
	broken := errors.New("no fleet")
	run := func(ctx context.Context, started func()) error {
		started()
		<-ctx.Done()
		return nil
	}
	err := withDemo(t.Context(), run, func() {}, func(context.Context) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("%v, want the demonstration's error", err)
	}
	ended := make(chan struct{})
	err = withDemo(t.Context(), func(_ context.Context, started func()) error { started(); return broken }, func() {}, func(ctx context.Context) error {
		<-ctx.Done()
		close(ended)
		return nil
	})
	<-ended
	if !errors.Is(err, broken) {
		t.Errorf("%v, want the server's error", err)
	}
}

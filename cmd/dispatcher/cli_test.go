package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// expectExits runs each command. It expects the exit code, and the words on standard output. If the command fails, the words must be on
// standard error, and standard output must be empty.
func expectExits(t *testing.T, code int, wantByCommand map[string]string) {
	t.Helper()
	for line, want := range wantByCommand {
		t.Run("dispatcher "+line, func(t *testing.T) {
			t.Parallel()
			got, stdout, stderr := runProgram(t, nil, strings.Fields(line)...)
			said := stdout
			if code != 0 {
				said = stderr
			}
			if got != code || !strings.Contains(said, want) {
				t.Errorf("exit %d, stdout %.300q, stderr %.300q; want %d, %q", got, stdout, stderr, code, want)
			}
			if code != 0 && (stdout != "" || !strings.HasPrefix(stderr, "dispatcher: ")) {
				t.Errorf("a failure says %q on stdout and %q on stderr", stdout, stderr)
			}
		})
	}
}

func TestHelpAndVersionExitWith0(t *testing.T) {
	t.Parallel()
	expectExits(t, 0, map[string]string{
		"version":         "v0.0.0-test\ncommit unknown\ndate unknown\n",
		"--version":       "v0.0.0-test",
		"":                "Operate:",
		"help serve":      "DISPATCHER_HTTP_LISTEN",
		"completion bash": "bash completion",
	})
}

func TestFailuresExitWith1(t *testing.T) {
	t.Parallel()
	expectExits(t, 1, map[string]string{
		"tokens create --name x --role viewer": "dispatcher dev",
		"pools list":                           "dispatcher dev",
		"pools list --url http://127.0.0.1:1":  "start one with `dispatcher dev`",
		"pools set p":                          "dispatcher dev",
		"dev --listen 300.0.0.1:1 --data d":    "--listen",
		"dev --data /dev/null":                 "/dev/null",
		"healthcheck --url http://127.0.0.1:1": "127.0.0.1:1",
	})
}

func TestUsageErrorsExitWith2(t *testing.T) {
	t.Parallel()
	expectExits(t, 2, map[string]string{
		"nope":                                 "dispatcher --help",
		"pool list":                            "did you mean: dispatcher pools",
		"pool list --limit 3":                  "did you mean: dispatcher pools",
		"pools lst":                            "dispatcher pools get, list, set",
		"help nosuch":                          `unknown command "nosuch"`,
		"help pools lst":                       "dispatcher pools get, list, set",
		"--nope":                               "--nope",
		"serve --nope":                         "--nope",
		"version x":                            "x",
		"migrate nope":                         "nope",
		"migrate up x":                         "x",
		"migrate up":                           "postgres_dsn",
		"tokens create":                        "--name",
		"tokens create --name x --role root":   "--role",
		"tokens create --name x":               "--role",
		"tokens create --name x --role caller": "pools, limit_sets: the role caller requires at least one pattern",
		"tokens create --name x --role admin --pool p":    "only allowed with the role caller",
		"tokens create --name x --role caller --pool a/b": "pools[0]",
		"serve":                       "postgres_dsn",
		"serve --reap-interval 5":     "reap_interval",
		"serve --config none.yaml":    "--config",
		"simulate":                    "DISPATCHER_FLEET_TOKEN",
		"simulate --silent 101%":      "--silent",
		"simulate --silent x":         "--silent",
		"simulate --via pigeon":       "--via",
		"simulate --credentials none": "--credentials",
		"simulate --devices x":        "--devices",
		"simulate --connections 5":    "--idle",
		"simulate --idle --tasks 5":   "--tasks",
		"simulate --idle --via mqtt":  "--via",
		"simulate --idle --devices 0": "--devices",
		"simulate --idle --period 0s": "--period",
		"simulate --idle":             "DISPATCHER_FLEET_TOKEN",
		"pools get":                   "1 arg",
		"pools nope":                  "nope",
		"pools list --output xml":     "--output",
		"pools list --url none":       "--url",
		"pools create p":              `"capacity"`,
		"pools create p --window x":   "--window",
		"pools release p 1":           `"reason"`,
		"pools apply":                 `"file"`,
		"batches get x":               "number",
		"batches create --pool p":     "file device tag",
		"batches create --device d":   `"pool"`,
		"tasks why 0":                 "number",
		"dev --simulate -1":           "--simulate",
		"healthcheck --url :":         "--url",
	})
}

// Each mistake in the configuration must be reported in its own line, in words for the user and not in the words of a decoder.
func TestMistakesOfTheConfigurationAreLines(t *testing.T) {
	t.Parallel()
	code, _, stderr := runProgram(t, []string{"DISPATCHER_REPORT_PERIOD=30", "DISPATCHER_LEASE_MARGIN=x"}, "serve")
	want := "dispatcher: lease_margin: must be a duration with its unit, such as 10s\ndispatcher: report_period: must be a duration with its unit, such as 30s\n"
	if code != exitUsage || stderr != want {
		t.Errorf("exit %d, %q, want %q", code, stderr, want)
	}
	if code, _, stderr := runProgram(t, []string{"DISPATCHER_REPORT_PERIOD=1ms", "DISPATCHER_MIGRATE=maybe"}, "serve"); code != exitUsage || strings.Count(stderr, "\n") != 2 || strings.Contains(stderr, `\n`) {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

// Two wrong addresses must be reported at once: one has the scheme https although its port has no TLS, and the other has a certificate
// that is not trusted. The error must not say that the command may have been executed, because a list changes nothing.
func TestWrongSchemeIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	for url, want := range map[string]string{
		strings.Replace(plain.URL, "http:", "https:", 1): "write http:// instead of https://",
		secure.URL: "not trusted here",
	} {
		code, _, stderr := runProgram(t, nil, "pools", "list", "--url", url)
		if code != exitFailure || !strings.Contains(stderr, want) || strings.Contains(stderr, "retrying in") || strings.Contains(stderr, "carried out") {
			t.Errorf("%s: exit %d, %s", url, code, stderr)
		}
	}
}

// TestTokenOfAnEmptyDatabase checks the advice for the first token in a database without
// migrations.
func TestTokenOfAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	code, _, stderr := runProgram(t, []string{"DISPATCHER_POSTGRES_DSN=" + sharedPostgres.NewDatabase(t)}, "tokens", "create", "--name", "first", "--role", "admin")
	if code != exitFailure || !strings.Contains(stderr, "dispatcher migrate up") || strings.Contains(stderr, "relation") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestMistypedVariableIsAUsageError(t *testing.T) {
	t.Parallel()
	const secret = "Kq7vW2canaryX9pL4"
	code, _, stderr := runProgram(t, []string{"DISPATCHER_ADMIN_TOKN=" + secret}, "serve")
	if code != 2 || !strings.Contains(stderr, "DISPATCHER_ADMIN_TOKN") || strings.Contains(stderr, secret) {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// The help of each command and of its subcommands must equal its golden file.
func TestHelpIsAsWritten(t *testing.T) {
	t.Parallel()
	for _, command := range append(rootCommand(nil, nil, nil).Commands(), rootCommand(nil, nil, nil)) {
		if command.Hidden {
			continue
		}
		name := "help"
		if command.HasParent() {
			name += "-" + command.Name()
		}
		if command.Name() == "completion" || command.Name() == "help" {
			continue // commands of cobra
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := helpText(t, command)
			file := filepath.Join("testdata", name+".txt")
			if *update {
				must.Succeed(t, os.WriteFile(file, []byte(got), 0o600))
			}
			if want, err := os.ReadFile(file); err != nil || got != string(want) {
				t.Errorf("%s is not the help (go test ./cmd/dispatcher -update writes it): %v\n%s", file, err, cmp.Diff(string(want), got))
			}
		})
	}
}

func helpText(t *testing.T, command *cobra.Command) string {
	t.Helper()
	words := strings.Fields(command.CommandPath())[1:]
	code, help, stderr := runProgram(t, nil, append(words, "--help")...)
	if code != 0 {
		t.Errorf("%s --help: exit %d, %s", command.CommandPath(), code, stderr)
	}
	if !command.HasParent() {
		return help
	}
	help = "$ " + command.CommandPath() + " --help\n" + help
	for _, below := range command.Commands() {
		help += "\n" + helpText(t, below)
	}
	return help
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	environ := []string{"DISPATCHER_POSTGRES_DSN=" + sharedPostgres.NewDatabase(t)}
	for _, step := range []struct{ command, want, not string }{
		{"status", "  no\n", "Z\n"},
		{"up", "applied ", "applied 0"},
		{"up", "applied 0\n", "applied 1"},
		{"status", "Z\n", "  no\n"},
		{"down", "", "applied"},
		{"status", "  no\n", ""},
		{"up", "applied 1\n", ""},
	} {
		code, stdout, stderr := runProgram(t, environ, "migrate", step.command)
		if code != 0 || !strings.Contains(stdout, step.want) || step.not != "" && strings.Contains(stdout, step.not) {
			t.Errorf("migrate %s: exit %d, %q, %s; want %q and no %q", step.command, code, stdout, stderr, step.want, step.not)
		}
	}
	code, _, stderr := runProgram(t, []string{"DISPATCHER_POSTGRES_DSN=postgres://" + servers.FreeAddr(t) + "/x?sslmode=disable"}, "migrate", "up")
	if code != 1 || stderr == "" {
		t.Errorf("without Postgres: exit %d, %q; want 1", code, stderr)
	}
}

// The first token is created in the database while a server runs without a configured token.
func TestTheFirstTokenIsMadeInTheDatabase(t *testing.T) {
	t.Parallel()
	environ := []string{"DISPATCHER_POSTGRES_DSN=" + sharedPostgres.NewLedger(t), "DISPATCHER_REDIS_URL=" + servers.StartRedis(t).URL(), "DISPATCHER_LOG_FORMAT=json"}
	d := startProgram(t, environ, "serve", "--http-listen", "127.0.0.1:0")
	url := "http://" + d.waitForOutput(t, `"msg":"ready","http":"([^"]+)"`)
	put := func(secret string) int {
		t.Helper()
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/v1/pools/p", strings.NewReader(`{"capacity":1}`))
		request.Header.Set("Authorization", "Bearer "+secret)
		response, err := http.DefaultClient.Do(request)
		must.Succeed(t, err)
		defer response.Body.Close()
		return response.StatusCode
	}
	for args, want := range map[string]int{"--role=admin": http.StatusCreated, "--role=viewer": http.StatusForbidden, "--role=admin --valid=1ms": http.StatusUnauthorized} {
		code, secret, stderr := runProgram(t, environ[:1], append([]string{"tokens", "create", "--name=by " + args}, strings.Fields(args)...)...)
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
	must.Succeed(t, os.WriteFile(config, []byte("log_format: json\nhttp_listen: 127.0.0.1:0\n"), 0o600))
	d := startProgram(t, []string{
		"DISPATCHER_POSTGRES_DSN=" + sharedPostgres.NewLedger(t), "DISPATCHER_REDIS_URL=" + servers.StartRedis(t).URL(),
		"DISPATCHER_ADMIN_TOKEN=" + secret, "DISPATCHER_FLEET_TOKEN=" + secret + "2",
	}, "serve", "--config", config)
	url := "http://" + d.waitForOutput(t, `"msg":"ready","http":"([^"]+)"`)
	if code, _, stderr := runProgram(t, nil, "healthcheck", "--url", url); code != 0 {
		t.Errorf("healthcheck: exit %d, %s", code, stderr)
	}
	if code, _, stderr := runProgram(t, []string{"DISPATCHER_URL=" + url + "/"}, "healthcheck"); code != 0 {
		t.Errorf("healthcheck by DISPATCHER_URL: exit %d, %s", code, stderr)
	}
	if code := d.signalAndWait(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit %d after SIGTERM", code)
	}
	if code, _, _ := runProgram(t, nil, "healthcheck", "--url", url); code != 1 {
		t.Errorf("healthcheck of none: exit %d, want 1", code)
	}
	if text := d.String(); strings.Contains(text, secret) || !strings.Contains(text, `"admin_token":"***"`) {
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
	err := runServerAndDemo(t.Context(), run, func() {}, func(context.Context) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("%v, want the demonstration's error", err)
	}
	ended := make(chan struct{})
	err = runServerAndDemo(t.Context(), func(_ context.Context, started func()) error { started(); return broken }, func() {}, func(ctx context.Context) error {
		<-ctx.Done()
		close(ended)
		return nil
	})
	<-ended
	if !errors.Is(err, broken) {
		t.Errorf("%v, want the server's error", err)
	}
}

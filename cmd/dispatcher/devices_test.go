package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

func TestDevicesAreCreatedChangedFoundAndDeleted(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.expectOutput("devices create d-1 --tag area=330100,city=hz", `
id  d-1
blocked  no
own_token  no
tags  {"area":"330100","city":"hz"}
created_at  TIME
registered_by  bootstrap
token  SECRET
`)
	d.runCommand("", "devices", "create", "d-1").expectExit(1).expectErrors("already_exists")
	d.run("devices create d-2")
	if got := maskVariableText(d.run("devices set d-1 --tag area=1 --untag city")); !strings.Contains(got, `tags  {"area":"1"}`+"\n") {
		t.Error(got)
	}
	d.runCommand("", "devices", "set", "d-1").expectExit(2).expectErrors("--untag")
	for filter, want := range map[string]string{"--tag area=1": "d-1", "--blocked true": "d-2", "--silent-for 1d --prefix d-1": "d-1"} {
		d.run("devices block d-2")
		var list []struct{ ID string }
		if d.decodeOutput(&list, "devices list "+filter); len(list) != 1 || list[0].ID != want {
			t.Errorf("%s: %+v", filter, list)
		}
	}
	d.run("devices unblock d-2")
	d.expectOutput("devices list", "ID  LAST SEEN  BLOCKED  OWN TOKEN  TAGS  ATTRIBUTES\nd-1  {\"area\":\"1\"}\nd-2\n")
	var made struct{ Token string }
	if d.decodeOutput(&made, "devices token d-1 --overlap 0s"); len(made.Token) != 43 {
		t.Errorf("%+v", made)
	}
	file := writeTemp(t, "0123456789abcdef0123456789abcdef\n")
	for _, line := range []string{"devices create short --device-token-file " + file, "devices token d-1 --device-token-file " + writeTemp(t, "f123456789abcdef0123456789abcdef")} {
		if d.decodeOutput(&made, line); len(made.Token) != 32 {
			t.Errorf("%s: %+v", line, made)
		}
	}
	d.runCommand("", "devices", "token", "d-1", "--device-token-file", writeTemp(t, "short")).expectExit(1).expectErrors("token")
	d.runCommand("", "devices", "token", "d-1", "--device-token-file", "/none").expectExit(2).expectErrors("--device-token-file", "/none")
	d.run("devices delete short")
	d.run("batches create --pool p --device d-1")
	d.runCommand("", "devices", "delete", "d-1").expectExit(1).expectErrors("open_tasks")
	d.expectOutput("devices delete d-1 --cancel", "id  d-1\ncancelled  1\nstopping  0\n")
	d.sendReport("d-7", `{}`)
	d.sendReport("d-2", `{}`)
	var recent []struct{ ID string }
	d.eventually("the devices seen last, newest first", func() bool {
		d.decodeOutput(&recent, "devices list --recent 2")
		return len(recent) == 2 && recent[0].ID == "d-2" && recent[1].ID == "d-7"
	})
	d.runCommand("", "devices", "list", "--recent", "1001").expectExit(1).expectErrors("recent", "1000")
	d.runCommand("", "devices", "list", "--silent-for", "1x").expectExit(2).expectErrors("silent-for", "1x")
	if d.decodeOutput(&recent, "devices list --prefix d-7"); len(recent) != 1 || recent[0].ID != "d-7" {
		t.Errorf("%+v", recent)
	}
	d.expectOutput("devices delete --prefix d- --registered-by bootstrap --dry-run", "1 device would be deleted\n")
	d.runCommand("", "devices", "delete", "--prefix", "d-7").expectExit(2).expectErrors("--yes")
	d.runCommand("", "devices", "delete").expectExit(2).expectErrors("--registered-by")
	d.runCommand("", "devices", "delete", "d-7", "--dry-run").expectExit(2).expectErrors("either")
	d.expectOutput("devices delete --prefix d-7 --refuse --yes", "1 device deleted\n")
	if got := d.run("devices export"); strings.Count(got, "\n") != 2 || !strings.Contains(got, "\nd-2,") {
		t.Error(got)
	}
}

func TestDevicesAreImported(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.writeFile("devices.csv", "device,area\nd-1,1\nd-2,\n")
	d.expectOutput("devices import -f devices.csv", "device,token\nd-1,SECRET\nd-2,SECRET\n")
	d.expectOutput("devices list --tag area=1", "ID  LAST SEEN  BLOCKED  OWN TOKEN  TAGS  ATTRIBUTES\nd-1  {\"area\":\"1\"}\n")
	d.runCommand("", "devices", "import", "-f", "devices.csv").expectExit(1).expectErrors("line 2", "existing")
	d.expectOutput("devices import -f devices.csv --existing skip", "device,token\nd-1,\nd-2,\n")
	d.expectOutput("devices import -f devices.csv --existing rotate", "device,token\nd-1,SECRET\nd-2,SECRET\n")
	out := d.runCommand(`{"id":"d-3"}`, "devices", "import", "-f", "-", "--format", "ndjson", "--output", "json").expectExit(0).out
	if maskVariableText(out) != `{"id":"d-3","token":"SECRET"}`+"\n" {
		t.Errorf("%s", out)
	}
	d.runCommand("device\na/b\n", "devices", "import", "-f", "-", "--format", "csv").expectExit(1).expectErrors("line 2", "(invalid_line)")
	d.runCommand("", "devices", "import", "-f", "devices.txt").expectExit(2).expectErrors("--format")

	f := d.useFlakyProxy()
	f.failNext(1, 0)
	d.writeFile("more.csv", "device\nd-4\n")
	d.runCommand("", "devices", "import", "-f", "more.csv").expectExit(1).expectErrors("tokens are lost", "dispatcher devices import --existing rotate -f more.csv")
	d.expectOutput("devices import --existing rotate -f more.csv", "device,token\nd-4,SECRET\n")
}

// TestAnInterruptedImportSaysHowToGetTokens interrupts an import whose request has reached the server. The devices may exist then, and nobody
// knows their tokens.
func TestAnInterruptedImportSaysHowToGetTokens(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(reached)
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	list := filepath.Join(t.TempDir(), "devices.csv")
	must.Succeed(t, os.WriteFile(list, []byte("device\nd-1\n"), 0o600))
	var errText bytes.Buffer
	cmd := programCommand(t, []string{"DISPATCHER_URL=" + server.URL, "DISPATCHER_TOKEN=t"}, "devices", "import", "-f", list)
	cmd.Stderr = &errText
	must.Succeed(t, cmd.Start())
	<-reached
	must.Succeed(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err == nil || !strings.Contains(errText.String(), "dispatcher devices import --existing rotate") {
		t.Errorf("%v: %s", err, errText.String())
	}
}

func TestTokensActInTheirRoleUntilDeleted(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	secret := strings.TrimSpace(d.run("tokens create --name eve --role viewer --valid 1h"))
	if len(secret) != 43 {
		t.Fatalf("%q is not a token alone", secret)
	}
	var made struct {
		ID                int
		Name, Role, Token string
		ExpiresAt         *string `json:"expires_at"`
	}
	if d.decodeOutput(&made, "tokens create --name bob --role operator"); made.Role != "operator" || made.Token == "" || made.ExpiresAt != nil {
		t.Errorf("%+v", made)
	}
	if secret := d.run("tokens create --name ci --role caller --pool ci-* --pool nightly --limit-set sms-*"); len(strings.TrimSpace(secret)) != 43 {
		t.Errorf("%q is not a token alone", secret)
	}
	d.expectOutput("tokens list", "ID  NAME  ROLE  POOLS  LIMIT SETS  CREATED  EXPIRES  LAST USED  REQUESTS\n"+
		"1  eve  viewer  TIME  TIME\n2  bob  operator  TIME\n3  ci  caller  ci-*, nightly  sms-*  TIME\n")
	eve := *d
	eve.environ = []string{d.environ[0], "DISPATCHER_TOKEN=" + secret}
	eve.run("pools list")
	for line, role := range map[string]string{"pools create p --capacity 60": "admin", "batches create --pool p --device d": "operator", "tokens list": "admin"} {
		eve.runCommand("", strings.Fields(line)...).expectExit(1).expectErrors("(forbidden)", "a token of the role "+role+" is needed")
	}
	eve.environ[1] = "DISPATCHER_TOKEN_FILE=" + filepath.Join(d.dir, d.writeFile("token", secret+"\n"))
	eve.run("pools list")
	eve.environ = append(eve.environ, "DISPATCHER_TOKEN=x")
	eve.runCommand("", "pools", "list").expectExit(2).expectErrors("as a value and as a file")
	secret = strings.TrimSpace(d.run("tokens rotate 1"))
	eve.environ = []string{d.environ[0], "DISPATCHER_TOKEN=" + secret}
	eve.run("pools list")
	d.run("tokens delete 1")
	eve.environ = []string{d.environ[0], "DISPATCHER_TOKEN=nobody"}
	eve.runCommand("", "pools", "list").expectExit(1).expectErrors("(unauthenticated)", "DISPATCHER_TOKEN", "dispatcher tokens create")
	if got := d.run("tokens list"); strings.Contains(got, "eve") {
		t.Errorf("revoked, and listed:\n%s", got)
	}
}

// The commands find the dispatcher dev of this folder and of this user, and no other one.
func TestDevIsFound(t *testing.T) {
	t.Parallel()
	home, here := t.TempDir(), t.TempDir()
	at := []string{"HOME=" + home}
	list := func(dir string, environ ...string) commandResult {
		cmd := programCommand(t, environ, "pools", "list")
		cmd.Dir = dir
		var errs strings.Builder
		cmd.Stderr = &errs
		_ = cmd.Run() // the exit code is checked below
		return commandResult{t, "pools list", cmd.ProcessState.ExitCode(), "", errs.String()}
	}
	list(here, at...).expectExit(1).expectErrors("no dispatcher dev runs here", "start one with `dispatcher dev`")
	d := startProgram(t, at, "dev", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0", "--data", filepath.Join(here, ".dispatcher"))
	d.waitForOutput(t, `HTTP\s+(http://\S+)`)
	list(here, "HOME="+t.TempDir()).expectExit(0)
	list(t.TempDir(), at...).expectExit(0)
	list(t.TempDir(), "HOME="+t.TempDir()).expectExit(1)
	// A configured address has precedence over a running dev.
	list(here, append(at, "DISPATCHER_URL=http://"+servers.FreeAddr(t))...).expectExit(1).expectErrors("DISPATCHER_URL")
	if code := d.signalAndWait(t, syscall.SIGTERM); code != 0 {
		t.Errorf("dev: exit %d", code)
	}
	for _, dir := range []string{filepath.Join(here, ".dispatcher"), filepath.Join(home, ".local", "state", "dispatcher")} {
		if _, err := os.Stat(filepath.Join(dir, "dev.json")); err == nil {
			t.Errorf("dev left its file in %s", dir)
		}
	}
	list(here, at...).expectExit(1).expectErrors("no dispatcher dev runs here")
}

// A killed dispatcher dev leaves its file. The process that uses its port afterwards does not get
// its token.
func TestFileOfAKilledDevIsNotBelieved(t *testing.T) {
	t.Parallel()
	here := t.TempDir()
	d := startProgram(t, []string{"HOME=" + here}, "dev", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0", "--data", filepath.Join(here, "data"))
	url := d.waitForOutput(t, `HTTP\s+(http://\S+)`)
	must.Succeed(t, d.cmd.Process.Kill())
	<-d.ended
	file := filepath.Join(here, ".local", "state", "dispatcher", "dev.json")
	content, err := os.ReadFile(file)
	if err != nil || !json.Valid(content) {
		t.Fatalf("no file was left: %v", err)
	}
	code, _, stderr := runProgram(t, []string{"HOME=" + here}, "pools", "list")
	commandResult{t, "pools list", code, "", stderr}.expectExit(1).expectErrors("no longer runs", file, url, "start one with `dispatcher dev`")
}

func TestEventsAreListedExportedAndWatched(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	d.run("pools set p --capacity 2")
	d.expectOutput("events list --pool p --order oldest", `
ID  AT  KIND  ACTOR  ABOUT  DETAIL
1  TIME  pool.created  operator bootstrap  pool p  capacity=1 lease=5m0s paused=false
2  TIME  pool.changed  operator bootstrap  pool p  capacity=1 -> 2
`)
	if got := d.run("events export --kind pool.changed --format ndjson"); strings.Count(got, "\n") != 1 {
		t.Error(got)
	}
	watch := startProgram(t, d.environ, "events", "watch", "--pool", "p")
	watch.waitForOutput(t, "Waiting for events")
	d.run("pools pause p")
	watch.waitForOutput(t, `Z  pool.changed +operator bootstrap +pool p  .*paused=false -> true`)
	if code := watch.signalAndWait(t, syscall.SIGINT); code != 0 {
		t.Errorf("exit %d after Ctrl-C", code)
	}
	all := startProgram(t, d.environ, "events", "watch", "--after", "0", "--output", "json")
	all.waitForOutput(t, `"id":1,`)
	all.waitForOutput(t, `"id":3,`)
}

// If a device has the same name as a part of the dispatcher, the log and its filters distinguish the two.
func TestActorsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1 --lease 2s")
	d.run("batches create --pool p --device reaper --max-attempts 1")
	if d.sendReport("reaper", `{"id":"1"}`)["reason"] != "granted" {
		t.Fatal("no grant")
	}
	d.eventually("the lease ends", func() bool { return strings.Contains(d.run("events list --kind task.lapsed"), "program reaper") })
	d.expectOutput("events list --actor reaper --actor-kind program", `
ID  AT  KIND  ACTOR  ABOUT  DETAIL
5  TIME  task.lapsed  program reaper  pool p batch 1 task 1 device reaper  timed_out
`)
	d.expectOutput("events list --actor reaper --actor-kind device --order oldest", `
ID  AT  KIND  ACTOR  ABOUT  DETAIL
4  TIME  task.granted  device reaper  pool p batch 1 task 1 device reaper  slot=0
`)
	d.runCommand("", "events", "list", "--actor-kind", "person").expectExit(1).expectErrors("actor_kind")
	watch := startProgram(t, d.environ, "events", "watch", "--after", "0", "--actor-kind", "program")
	watch.waitForOutput(t, `Z  task.lapsed +program reaper +pool p`)
	if csv := d.run("events export --actor reaper --actor-kind program --format csv"); !strings.Contains(csv, ",actor_kind,batch_name\n") || !strings.Contains(csv, ",program,\n") {
		t.Error(csv)
	}
	d.runCommand("", "tokens", "create", "--role", "viewer", "--name", "al\u200bice").expectExit(2).expectErrors("name: only visible characters", `al\u200bice`)
}

// Events that happen while the connection is lost are shown after it is restored.
func TestWatchLosesNothing(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	direct := *d
	direct.environ = append([]string{}, d.environ...)
	f := d.useFlakyProxy()
	watch := startProgram(t, d.environ, "events", "watch")
	watch.waitForOutput(t, "Waiting for events")
	direct.run("pools create a --capacity 60")
	watch.waitForOutput(t, `pool.created .*pool a`)
	f.failNext(0, 1)
	f.closeConnections()
	direct.run("pools create b --capacity 60")
	watch.waitForOutput(t, `retrying in`)
	watch.waitForOutput(t, `pool.created .*pool b`)
	if text := watch.String(); strings.Count(text, "pool a") != 1 || strings.Count(text, "pool b") != 1 {
		t.Errorf("not each of them once:\n%s", text)
	}
}

func TestCompletionOffersWhatThereIs(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create ar:1 --capacity 60")
	d.run("pools create ar:2 --capacity 60")
	d.run("pools create other --capacity 60")
	d.run("devices create d-1")
	d.run("batches create --pool other --name spring --device d-1")
	for line, want := range map[string]string{
		"pools get ar":                    "ar:1\t60\nar:2\t60\n:4\n",
		"pools get ar:1 ":                 ":4\n",
		"batches pause ":                  "1\tspring\n:4\n",
		"batches create --pool oth":       "other\t60\n:4\n",
		"devices get d":                   "d-1\n:4\n",
		"tasks list --state t":            strings.Join(append(operators.TaskStates(), ":4\n"), "\n"),
		"events list --order ":            "newest\noldest\n:4\n",
		"tokens create --name x --role v": strings.Join(append(tokenRoles(), ":4\n"), "\n"),
		"pools list --output j":           "table\njson\n:4\n",
	} {
		args := append([]string{"__complete"}, strings.Split(line, " ")...)
		if got := d.runCommand("", args...).expectExit(0).out; got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	d.environ = nil
	if got := d.runCommand("", "__complete", "pools", "get", "").expectExit(0); got.out != ":4\n" {
		t.Errorf("without a server: %q", got.out)
	}
}

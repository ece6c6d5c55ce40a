package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestContexts(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	installation := func(name string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"pools":[{"name":"` + name + ` by ` + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + `"}]}`))
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	for _, name := range []string{"field", "lab"} {
		must.Succeed(t, os.WriteFile(filepath.Join(home, name), []byte("token-of-"+name+"\n"), 0o600))
	}
	file := filepath.Join(home, "config", "dispatcher", "contexts.json")
	must.Succeed(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(`{"contexts":null}`), 0o600)))
	run := func(environ []string, line string) (code int, text string) {
		cmd := programCommand(t, append(environ, "HOME="+home, "XDG_CONFIG_HOME="+filepath.Join(home, "config")), strings.Fields(line)...)
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	for _, name := range []string{"field", "lab"} {
		if code, text := run(nil, "context add "+name+" --url "+installation(name)+" --token-file "+filepath.Join(home, name)); code != 0 {
			t.Fatal(text)
		}
	}
	if code, text := run(nil, "context use field"); code != 0 {
		t.Fatal(text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	given := []string{"DISPATCHER_URL=" + installation("given"), "DISPATCHER_TOKEN=token-given"}
	for _, c := range []struct {
		environ    []string
		line, says string
		code       int
	}{
		{nil, "pools list", "field by token-of-field", 0},
		{nil, "pools list --context lab", "lab by token-of-lab", 0},
		{given, "pools list", "given by token-given", 0},
		{given, "pools list --context lab", "lab by token-of-lab", 0},
		{given[1:], "pools list", "field by token-of-field", 0},
		{nil, "pools list --context none", `no context "none"`, 2},
		{nil, "pools list --context lab --url http://x", "none of the others can be", 2},
		{nil, "context use none", `no context "none"`, 2},
		{nil, "context add x --url http://me:secret@host", "without a password", 2},
		{nil, "context list", "*    field", 0},
		{[]string{"DISPATCHER_POSTGRES_DSN=postgres://nobody@localhost:1/x"}, "tokens create --name x --role viewer", `the context "field" is in use, and DISPATCHER_POSTGRES_DSN names a database`, 2},
		{[]string{"DISPATCHER_POSTGRES_DSN=postgres://nobody@localhost:1/x"}, "tokens create --name x --role viewer --context lab", "its token was lost", 1},
		{nil, "context delete field", "", 0},
		{nil, "pools list", "dispatcher dev", 1},
		{nil, "context use --none", "", 0},
	} {
		if code, text := run(c.environ, c.line); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", c.line, code, c.code, c.says, text)
		}
	}
}

package servers_test

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestPostgresKeepsWhatItCommitted(t *testing.T) {
	t.Parallel()
	pg := servers.StartPostgres(t)
	db, err := sql.Open("postgres", pg.NewDatabase(t))
	must.Succeed(t, err)
	defer db.Close()
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	exec("CREATE TABLE kept (n int)")
	for _, end := range []func(){pg.Kill, pg.Stop, pg.StopImmediately} {
		exec("INSERT INTO kept VALUES (1)")
		end()
		pg.Start()
	}
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM kept").Scan(&n); err != nil || n != 3 {
		t.Fatalf("kept %d rows, %v; want 3", n, err)
	}
}

func TestPostgresIsDurable(t *testing.T) {
	t.Parallel()
	var shared servers.SharedPostgres
	t.Cleanup(shared.Close)
	one, two := shared.NewDatabase(t), shared.NewDatabase(t)
	if one == two {
		t.Fatalf("two tests share the database %s", one)
	}
	db, err := sql.Open("postgres", one)
	must.Succeed(t, err)
	defer db.Close()
	for _, setting := range []string{"fsync", "synchronous_commit"} {
		var value string
		if err := db.QueryRowContext(t.Context(), "SHOW "+setting).Scan(&value); err != nil || value != "on" {
			t.Errorf("%s is %q, %v; want on", setting, value, err)
		}
	}
}

func TestClustersOfKilledTestsAreRemoved(t *testing.T) {
	t.Parallel()
	own := servers.ClusterDir(t)
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	ended := exec.CommandContext(t.Context(), "true")
	must.Succeed(t, ended.Run())
	orphan := filepath.Join(filepath.Dir(own), fmt.Sprintf("postgres-killed.test-%d-1", ended.Process.Pid))
	must.Succeed(t, os.Mkdir(orphan, 0o700))
	next := servers.ClusterDir(t)
	t.Cleanup(func() { _ = os.RemoveAll(next) })
	if _, err := os.Stat(orphan); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", orphan, err)
	}
	if _, err := os.Stat(own); err != nil {
		t.Error(err)
	}
}

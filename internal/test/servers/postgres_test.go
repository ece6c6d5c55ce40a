package servers_test

import (
	"database/sql"
	"testing"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestPostgresKeepsWhatItCommitted(t *testing.T) {
	t.Parallel()
	pg := servers.Postgres(t)
	db, err := sql.Open("postgres", pg.NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	exec("CREATE TABLE kept (n int)")
	for _, end := range []func(){pg.Kill, pg.Stop, pg.Immediate} {
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
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, setting := range []string{"fsync", "synchronous_commit"} {
		var value string
		if err := db.QueryRowContext(t.Context(), "SHOW "+setting).Scan(&value); err != nil || value != "on" {
			t.Errorf("%s is %q, %v; want on", setting, value, err)
		}
	}
}

package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// openMigrated opens and migrates the SQLite ledger at path, as `dispatcher dev` does.
func openMigrated(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.OpenSQLite(t.Context(), path)
	must.Succeed(t, err)
	_, err = s.Migrate(t.Context())
	must.Succeed(t, err)
	return s
}

// TestAFullDiskIsNamed checks a write for which the disk has no room. Its error must name the full disk, and the write must not be
// committed. The ledger must not be ready until the disk has room again.
func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	fill := map[string][]string{
		"sqlite": {"PRAGMA max_page_count = 1"}, // SQLite limits the file to its current number of pages.
		"postgres": {
			`CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$`,
			`CREATE TRIGGER no_room BEFORE INSERT ON batches EXECUTE FUNCTION no_room()`,
		},
	}
	empty := map[string]string{"sqlite": "PRAGMA max_page_count = 1000000", "postgres": "DROP TRIGGER no_room ON batches"}
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		l.must(l.Ready(l.Context()))
		do := func(statement string) {
			l.Helper()
			if _, err := l.DB().ExecContext(l.Context(), statement); err != nil {
				l.Fatalf("%s: %v", statement, err)
			}
		}
		for _, statement := range fill[l.Dialect()] {
			do(statement)
		}
		devices := make([]string, 2000)
		for i := range devices {
			devices[i] = fmt.Sprintf("device-%d", i)
		}
		queue := func() error {
			_, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, tasksFor(devices))
			return err
		}
		if err := queue(); !errors.Is(err, store.ErrDiskFull) || errors.Is(err, store.ErrOutcomeUnknown) {
			l.Errorf("%v, want %v, and that it is known", err, store.ErrDiskFull)
		}
		if err := l.Ready(l.Context()); !errors.Is(err, store.ErrDiskFull) {
			l.Errorf("ready: %v, want %v", err, store.ErrDiskFull)
		}
		do(empty[l.Dialect()])
		if err := queue(); err != nil {
			l.Errorf("with room again: %v", err)
		}
	})
}

// TestADamagedLedgerIsRefused opens a damaged file. The error must name the file and a remedy.
func TestADamagedLedgerIsRefused(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(content []byte) []byte{
		"empty":     func([]byte) []byte { return nil },
		"no ledger": func(content []byte) []byte { return []byte(strings.Repeat("something else\n", len(content)/15)) },
		"broken":    func(content []byte) []byte { copy(content[100:4096], strings.Repeat("x", 4096)); return content },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ledger.db")
			openMigrated(t, path).Close()
			content, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, spoil(content), 0o600)
			}
			must.Succeed(t, err)
			s, err := store.OpenSQLite(t.Context(), path)
			if err == nil {
				t.Cleanup(func() { s.Close() })
				_, err = s.Migrate(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "restore it from a backup; or, to start with an empty ledger, move it away") {
				t.Errorf("%v; want an error that names the file and a remedy", err)
			}
		})
	}
}

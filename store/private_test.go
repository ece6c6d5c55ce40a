package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestLedgerFileIsPrivate checks that other users of the machine cannot read the file of an SQLite ledger, even if the file existed before
// with wider permissions.
func TestLedgerFileIsPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	openMigrated(t, path).Close()
	must.Succeed(t, os.Chmod(path, 0o644))
	s := openMigrated(t, path)
	t.Cleanup(func() { s.Close() })
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		must.Succeed(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %s", filepath.Base(file), info.Mode())
		}
	}
}

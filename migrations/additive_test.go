package migrations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Replicas of the previous version keep running on the schema of the next, and
// start on it again when an upgrade is taken back: so a migration only adds.
// Once there is a release, a removal one minor version later is listed here.
func TestMigrationsOnlyAdd(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/*.sql")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d migrations, %v", len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(content), "-- +goose Down")
		for _, found := range removals(up) {
			t.Errorf("%s: %q would disturb the previous version", file, found)
		}
	}
}

// removals are the statements that take away, rename or tighten what is there.
func removals(sql string) []string {
	sql = regexp.MustCompile(`--.*`).ReplaceAllString(sql, "")
	const takesAway = `\bDROP\b[^;]*|\bRENAME\b[^;]*|\bTRUNCATE\b[^;]*|\bDELETE\s+FROM\b[^;]*|\bALTER\s+COLUMN\b[^;]*|\bADD\s+CONSTRAINT\b[^;]*`
	found := regexp.MustCompile(`(?i)`+takesAway).FindAllString(sql, -1)
	for _, column := range regexp.MustCompile(`(?i)\bADD\s+COLUMN\b[^;,]*`).FindAllString(sql, -1) {
		// What the previous version inserts has no value for it.
		if upper := strings.ToUpper(column); strings.Contains(upper, "NOT NULL") && !strings.Contains(upper, "DEFAULT") {
			found = append(found, column)
		}
	}
	return found
}

func TestRemovalsAreFound(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]int{
		"CREATE TABLE t (a int NOT NULL); CREATE INDEX i ON t (a);":                          0,
		"ALTER TABLE t ADD COLUMN b int; ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 0;": 0,
		"-- DROP TABLE t;\nSELECT 1;":                                                        0,
		"ALTER TABLE t ADD COLUMN b int NOT NULL;":                                           1,
		"ALTER TABLE t ADD COLUMN b int,\n  add column c text not null;":                     1,
		"ALTER TABLE t DROP COLUMN a;":                                                       1,
		"drop table t; ALTER TABLE u RENAME TO v;":                                           2,
		"ALTER TABLE t ALTER COLUMN a SET NOT NULL;":                                         1,
		"ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0);":                                      1,
	} {
		if got := removals(sql); len(got) != want {
			t.Errorf("%s: %q, want %d", sql, got, want)
		}
	}
}

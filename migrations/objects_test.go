package migrations_test

import (
	"slices"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/migrations"
)

// TestObjectsAreThoseOfAFreshLedger checks that Objects, which parses the migrations, returns exactly the objects that Postgres creates.
func TestObjectsAreThoseOfAFreshLedger(t *testing.T) {
	t.Parallel()
	db := replicas(t, migrations.Postgres, 1)[0]
	_, err := migrations.Up(t.Context(), db, migrations.Postgres)
	must.Succeed(t, err)
	rows, err := db.QueryContext(t.Context(), `
		SELECT 'index', indexname, tablename FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'goose_db_version'
		UNION ALL
		SELECT 'trigger', g.tgname, t.relname FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid WHERE NOT g.tgisinternal`)
	must.Succeed(t, err)
	defer rows.Close()
	got, err := migrations.Objects()
	if err != nil || len(got) < 50 {
		t.Fatalf("%d objects, %v", len(got), err)
	}
	for rows.Next() {
		var there migrations.Object
		must.Succeed(t, rows.Scan(&there.Kind, &there.Name, &there.Table))
		i := slices.Index(got, there)
		if i < 0 {
			t.Errorf("%+v is not among the objects", there)
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	if rows.Err() != nil || len(got) > 0 {
		t.Errorf("%v; the ledger has no %+v", rows.Err(), got)
	}
}

package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/migrations"
	"github.com/fleetslots/dispatcher/store"
)

// maxConnsPerReplica is the maximum number of connections that one replica opens.
const maxConnsPerReplica = 26

const (
	minWALSize       = 1 << 30          // bytes; a smaller max_wal_size is reported
	minSharedBuffers = 128 << 20        // bytes; smaller shared_buffers are reported
	longTransaction  = 10 * time.Minute // an open transaction that is older is reported
	deadRowsAllowed  = 100_000          // a table with more dead rows, or with more rows changed since ANALYZE, may be reported
)

// postgresState is the state of Postgres and of the ledger at one time.
type postgresState struct {
	store.PostgresState

	settingsErr       error // the error of CheckSettings
	missingMigrations []string
	expectedObjects   []migrations.Object
	replicas          []store.Replica // the running replicas; not read if migrations are missing
	now               time.Time       // time of the ledger when replicas was read
}

// checkPostgres checks Postgres and the ledger. replicas is the number of running replicas, or replicasUnknown.
func (p Installation) checkPostgres(ctx context.Context, ledger *store.Store) (findings []Finding, replicas int) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	d, err := readPostgresState(ctx, ledger)
	if err != nil {
		return []Finding{{"postgres", Failed, err.Error(), "see the log of Postgres"}}, replicasUnknown
	}
	findings = append(d.checkServer(), d.checkLedger()...)
	if d.Standby || len(d.missingMigrations) > 0 {
		return append(findings, Finding{"replicas", Unknown, "the ledger could not be read", "repair the schema first"}), replicasUnknown
	}
	return append(findings, d.checkReplicas(p.Version)...), len(d.replicas)
}

func readPostgresState(ctx context.Context, ledger *store.Store) (state postgresState, err error) {
	if state.PostgresState, err = ledger.PostgresState(ctx); err != nil {
		return state, err
	}
	state.settingsErr = ledger.CheckSettings(ctx)
	if state.expectedObjects, err = migrations.Objects(); err != nil || state.Standby { // on a standby, the table of migrations cannot be created
		return state, err
	}
	states, err := ledger.MigrationStatus(ctx)
	for _, s := range states {
		if !s.Applied {
			state.missingMigrations = append(state.missingMigrations, s.Name)
		}
	}
	if err != nil || len(state.missingMigrations) > 0 {
		return state, err
	}
	all, now, err := ledger.Replicas(ctx)
	state.now = now
	state.replicas = slices.DeleteFunc(all, func(r store.Replica) bool { return now.Sub(r.Seen) > maxHeartbeatAge })
	return state, err
}

func (d postgresState) checkServer() []Finding {
	show := func(setting string) string { return d.Settings[setting].Text }
	list := func(settings ...string) string {
		for i, setting := range settings {
			settings[i] = setting + " = " + show(setting)
		}
		return strings.Join(settings, ", ")
	}
	durability := list("fsync", "synchronous_commit")
	if d.settingsErr != nil {
		durability = d.settingsErr.Error()
	}
	writes := "accepts writes"
	if d.Standby {
		writes = "is a standby and accepts no writes"
	}
	return []Finding{
		newFinding("postgres version", d.Version < 140000, Failed, fmt.Sprintf("%d.%d", d.Version/10000, d.Version%10000), "Postgres 14 or newer is needed"),
		newFinding("postgres writes", d.Standby, Failed, writes, "name the primary in postgres_dsn"),
		newFinding("postgres durability", d.settingsErr != nil, Failed, durability, "set it in postgresql.conf and reload; check also ALTER DATABASE, ALTER ROLE and the options in postgres_dsn"),
		newFinding("postgres full_page_writes", show("full_page_writes") != "on", Warning, show("full_page_writes"), "set full_page_writes = on: a power cut may tear a page, unless the file system cannot"),
		newFinding("postgres isolation", show("default_transaction_isolation") != "read committed", Failed, show("default_transaction_isolation"), "each connection requests read committed when it opens: let the proxy in between pass options on"),
		d.checkConnections(),
		newFinding("postgres memory", d.Settings["shared_buffers"].Number < minSharedBuffers, Warning, list("shared_buffers"), "a hint: set shared_buffers to a quarter of the memory, at least 128MB"),
		newFinding("postgres WAL", d.Settings["max_wal_size"].Number < minWALSize, Warning, list("max_wal_size"), "a hint: set max_wal_size to 1GB or more, or checkpoints are frequent"),
		newFinding("postgres autovacuum", show("autovacuum") != "on" || show("track_counts") != "on", Warning, list("autovacuum", "track_counts"), "set both to on: the grants are updated all the time"),
		newFinding("postgres transactions", d.OldestTxAge > longTransaction, Warning, fmt.Sprintf("the oldest open transaction began %s ago", d.OldestTxAge.Round(time.Second)),
			"end it (pg_stat_activity; it may be in another database): until then, VACUUM cannot remove rows that died since it began"),
		{"postgres disk", Unknown, "the database has " + formatBytes(d.Size) + "; Postgres does not report the free space", "monitor the disk of its machine"},
	}
}

// checkConnections compares the number of connections that the replicas may open with the number that the role may use.
func (d postgresState) checkConnections() Finding {
	available := d.Settings["max_connections"].Number - d.Settings["superuser_reserved_connections"].Number
	if d.RoleLimit >= 0 {
		available = min(available, int64(d.RoleLimit))
	}
	replicas := max(len(d.replicas), 1)
	need := int64(maxConnsPerReplica * replicas)
	found := fmt.Sprintf("%d available for this role, %d in use; the replicas (%d) open up to %d", available, d.InUse, replicas, need)
	return newFinding("postgres connections", need > available, Warning, found, "raise max_connections (or the limit of the role), or run fewer replicas: each opens up to 26")
}

func (d postgresState) checkLedger() []Finding {
	schema := "all migrations are applied"
	if len(d.missingMigrations) > 0 {
		schema = "migrations are missing: " + strings.Join(d.missingMigrations, ", ")
	}
	return []Finding{
		newFinding("schema", len(d.missingMigrations) > 0, Failed, schema, "dispatcher migrate up; or start serve with migrate=on"),
		d.checkObjects("indexes", migrations.Index, d.Indexes, "not valid", "create a missing index as in migrations/postgres; for an index that is not valid: REINDEX INDEX CONCURRENTLY name"),
		d.checkObjects("triggers", migrations.Trigger, d.Triggers, "disabled", "create a missing trigger as in migrations/postgres; for a disabled trigger: ALTER TABLE ... ENABLE TRIGGER name"),
		d.checkStatistics(),
	}
}

// checkObjects checks that all expected objects of a kind (such as indexes) exist in the schema and are valid. isValidByName has one entry for
// each existing object: its key is the name of the object, and its value says whether the object is valid. invalidText describes an object
// that is not valid.
func (d postgresState) checkObjects(checkName, kind string, isValidByName map[string]bool, invalidText, remedy string) Finding {
	if len(d.missingMigrations) > 0 {
		return Finding{checkName, Unknown, "the schema is not complete", remedy}
	}
	var wrong []string
	n := 0
	for _, o := range d.expectedObjects {
		if o.Kind != kind {
			continue
		}
		n++
		if good, exists := isValidByName[o.Name]; !exists {
			wrong = append(wrong, o.Name+" of "+o.Table+" is missing")
		} else if !good {
			wrong = append(wrong, o.Name+" of "+o.Table+" is "+invalidText)
		}
	}
	if len(wrong) > 0 {
		return Finding{checkName, Failed, strings.Join(wrong, ", "), remedy}
	}
	return Finding{Check: checkName, State: OK, Found: fmt.Sprintf("all %d", n)}
}

// checkStatistics finds tables with more dead rows than live rows, and tables with more rows changed since the last
// ANALYZE than live rows. It does not report a table with at most deadRowsAllowed such rows.
func (d postgresState) checkStatistics() Finding {
	var wrong []string
	for _, t := range d.Statistics {
		switch {
		case t.Dead > max(deadRowsAllowed, t.Live):
			wrong = append(wrong, fmt.Sprintf("%s has %d dead rows, vacuumed %s", t.Table, t.Dead, timeOrNever(t.Vacuumed)))
		case t.Modified > max(deadRowsAllowed, t.Live):
			wrong = append(wrong, fmt.Sprintf("%s has %d changed rows, analyzed %s", t.Table, t.Modified, timeOrNever(t.Analyzed)))
		}
	}
	if len(wrong) > 0 {
		return Finding{"statistics", Warning, strings.Join(wrong, ", "), "run VACUUM (ANALYZE) on the table, and find out why autovacuum does not run"}
	}
	return Finding{Check: "statistics", State: OK, Found: fmt.Sprintf("%d tables checked", len(d.Statistics))}
}

// timeOrNever returns last as text, or "never" if last is nil.
func timeOrNever(last *time.Time) string {
	if last == nil {
		return "never"
	}
	return last.UTC().Format(terminal.TimeLayout)
}

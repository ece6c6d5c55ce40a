package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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

// postgresState is the state of Postgres as it was read.
type postgresState struct {
	store.PostgresState
	settingsErr       error // the error of CheckSettings
	missingMigrations []string
	expectedObjects   []migrations.Object
	replicas          int // number of running replicas, at least 1
}

// checkPostgres reads the state of Postgres and checks it.
func (p Installation) checkPostgres(ctx context.Context, ledger *store.Store) []Finding {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	d, err := readPostgresState(ctx, ledger)
	if err != nil {
		return []Finding{{"postgres", Failed, err.Error(), "see the log of Postgres"}}
	}
	return runChecks(d, append(serverChecks(), ledgerChecks()...))
}

// readPostgresState reads the state of Postgres, of the migrations and of the replicas.
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
	state.replicas = 1
	if err == nil && len(state.missingMigrations) == 0 {
		list, now, err := ledger.Replicas(ctx)
		if err != nil {
			return state, err
		}
		state.replicas = max(1, len(runningReplicas(list, now)))
	}
	return state, err
}

// serverChecks returns the checks of the Postgres server.
func serverChecks() []check[postgresState] {
	return []check[postgresState]{
		{"postgres version", func(d postgresState) (State, string) {
			return stateIf(d.Version < 140000, Failed), fmt.Sprintf("%d.%d", d.Version/10000, d.Version%10000)
		}, "Postgres 14 or newer is needed"},
		{"postgres writes", func(d postgresState) (State, string) {
			if d.Standby {
				return Failed, "is a standby and accepts no writes"
			}
			return OK, "accepts writes"
		}, "name the primary in postgres_dsn"},
		{"postgres durability", func(d postgresState) (State, string) {
			if d.settingsErr != nil {
				return Failed, d.settingsErr.Error()
			}
			return OK, "fsync = " + d.settingText("fsync") + ", synchronous_commit = " + d.settingText("synchronous_commit")
		}, "set it in postgresql.conf and reload; check also ALTER DATABASE, ALTER ROLE and the options in postgres_dsn"},
		{"postgres full_page_writes", func(d postgresState) (State, string) {
			return stateIf(d.settingText("full_page_writes") != "on", Warning), d.settingText("full_page_writes")
		}, "set full_page_writes = on: a power cut may tear a page, unless the file system cannot"},
		{"postgres isolation", func(d postgresState) (State, string) {
			return stateIf(d.settingText("default_transaction_isolation") != "read committed", Failed), d.settingText("default_transaction_isolation")
		}, "each connection requests read committed when it opens: let the proxy in between pass options on"},
		{"postgres connections", postgresState.checkConnections, "raise max_connections (or the limit of the role), or run fewer replicas: each opens up to 26"},
		{"postgres memory", func(d postgresState) (State, string) {
			return stateIf(d.Settings["shared_buffers"].Number < minSharedBuffers, Warning), "shared_buffers = " + d.settingText("shared_buffers")
		}, "a hint: set shared_buffers to a quarter of the memory, at least 128MB"},
		{"postgres WAL", func(d postgresState) (State, string) {
			return stateIf(d.Settings["max_wal_size"].Number < minWALSize, Warning), "max_wal_size = " + d.settingText("max_wal_size")
		}, "a hint: set max_wal_size to 1GB or more, or checkpoints are frequent"},
		{"postgres autovacuum", func(d postgresState) (State, string) {
			off := d.settingText("autovacuum") != "on" || d.settingText("track_counts") != "on"
			return stateIf(off, Warning), "autovacuum = " + d.settingText("autovacuum") + ", track_counts = " + d.settingText("track_counts")
		}, "set both to on: the grants are updated all the time"},
		{"postgres transactions", func(d postgresState) (State, string) {
			return stateIf(d.OldestTxAge > longTransaction, Warning), fmt.Sprintf("the oldest open transaction began %s ago", d.OldestTxAge.Round(time.Second))
		}, "end it (pg_stat_activity; it may be in another database): until then, VACUUM cannot remove rows that died since it began"},
		{"postgres disk", func(d postgresState) (State, string) {
			return Unknown, "the database has " + formatBytes(d.Size) + "; Postgres does not report the free space"
		}, "monitor the disk of its machine"},
	}
}

// ledgerChecks returns the checks of the ledger in Postgres.
func ledgerChecks() []check[postgresState] {
	return []check[postgresState]{
		{"schema", func(d postgresState) (State, string) {
			if len(d.missingMigrations) > 0 {
				return Failed, "migrations are missing: " + strings.Join(d.missingMigrations, ", ")
			}
			return OK, "all migrations are applied"
		}, "dispatcher migrate up; or start serve with migrate=on"},
		{
			"indexes", func(d postgresState) (State, string) { return d.checkObjects(migrations.Index, d.Indexes, "not valid") },
			"create a missing index as in migrations/postgres; for an index that is not valid: REINDEX INDEX CONCURRENTLY name",
		},
		{
			"triggers", func(d postgresState) (State, string) {
				return d.checkObjects(migrations.Trigger, d.Triggers, "disabled")
			},
			"create a missing trigger as in migrations/postgres; for a disabled trigger: ALTER TABLE ... ENABLE TRIGGER name",
		},
		{"statistics", postgresState.checkStatistics, "run VACUUM (ANALYZE) on the table, and find out why autovacuum does not run"},
	}
}

// settingText returns the value of a setting of the server as SHOW returns it.
func (d postgresState) settingText(setting string) string { return d.Settings[setting].Text }

// checkConnections compares the number of connections that the replicas may open with the number that the
// role may use.
func (d postgresState) checkConnections() (State, string) {
	available := d.Settings["max_connections"].Number - d.Settings["superuser_reserved_connections"].Number
	if d.RoleLimit >= 0 {
		available = min(available, int64(d.RoleLimit))
	}
	need := int64(maxConnsPerReplica * d.replicas)
	return stateIf(need > available, Warning), fmt.Sprintf("%d available for this role, %d in use; the replicas (%d) open up to %d", available, d.InUse, d.replicas, need)
}

// checkObjects checks that all expected objects of a kind (such as indexes) exist in the schema and are valid. isValid has one entry for
// each existing object: its key is the name of the object, and its value says whether the object is valid. invalidText describes an object
// that is not valid.
func (d postgresState) checkObjects(kind string, isValid map[string]bool, invalidText string) (State, string) {
	if len(d.missingMigrations) > 0 {
		return Unknown, "the schema is not complete"
	}
	var wrong []string
	n := 0
	for _, o := range d.expectedObjects {
		if o.Kind != kind {
			continue
		}
		n++
		if good, exists := isValid[o.Name]; !exists {
			wrong = append(wrong, o.Name+" of "+o.Table+" is missing")
		} else if !good {
			wrong = append(wrong, o.Name+" of "+o.Table+" is "+invalidText)
		}
	}
	if len(wrong) > 0 {
		return Failed, strings.Join(wrong, ", ")
	}
	return OK, fmt.Sprintf("all %d", n)
}

// checkStatistics finds tables with more dead rows than live rows, and tables with more rows changed since the last
// ANALYZE than live rows. It does not report a table with at most deadRowsAllowed such rows.
func (d postgresState) checkStatistics() (State, string) {
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
		return Warning, strings.Join(wrong, ", ")
	}
	return OK, fmt.Sprintf("%d tables checked", len(d.Statistics))
}

// timeOrNever returns last as text, or "never" if last is nil.
func timeOrNever(last *time.Time) string {
	if last == nil {
		return "never"
	}
	return last.UTC().Format(time.RFC3339)
}

// stateIf returns state if applies is true, and otherwise OK.
func stateIf(applies bool, state State) State {
	if applies {
		return state
	}
	return OK
}

// runningReplicas returns those of replicas whose last heartbeat is at most a minute before now.
func runningReplicas(replicas []store.Replica, now time.Time) []store.Replica {
	return slices.DeleteFunc(slices.Clone(replicas), func(r store.Replica) bool { return now.Sub(r.Seen) > time.Minute })
}

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

// connectionsEach is the maximum number of connections that one replica opens.
const connectionsEach = 26

const (
	walEnough     = 1 << 30   // minimum of max_wal_size without a warning
	buffersEnough = 128 << 20 // minimum of shared_buffers without a warning
	longOpen      = 10 * time.Minute
	manyDead      = 100_000 // number of rows up to which dead or changed rows give no warning
)

// database is the state of Postgres as it was read.
type database struct {
	store.Condition
	unsafe   error // the error of CheckSettings
	missing  []string
	expected []migrations.Object
	replicas int // number of running replicas, at least 1
}

// postgres reads the state of Postgres and checks it.
func (p Patient) postgres(ctx context.Context, ledger *store.Store) []Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d, err := databaseOf(ctx, ledger)
	if err != nil {
		return []Finding{{"postgres", Failed, err.Error(), "see the log of Postgres"}}
	}
	return through(d, append(serverChecks(), ledgerChecks()...))
}

func databaseOf(ctx context.Context, ledger *store.Store) (d database, err error) {
	if d.Condition, err = ledger.Condition(ctx); err != nil {
		return d, err
	}
	d.unsafe = ledger.CheckSettings(ctx)
	if d.expected, err = migrations.Objects(); err != nil || d.Standby { // on a standby, the table of migrations cannot be created
		return d, err
	}
	states, err := ledger.MigrationStatus(ctx)
	for _, s := range states {
		if !s.Applied {
			d.missing = append(d.missing, s.Name)
		}
	}
	d.replicas = 1
	if err == nil && len(d.missing) == 0 {
		list, now, err := ledger.Replicas(ctx)
		if err != nil {
			return d, err
		}
		d.replicas = max(1, len(running(list, now)))
	}
	return d, err
}

func serverChecks() []check[database] {
	return []check[database]{
		{"postgres version", func(d database) (State, string) {
			return unless(d.Version < 140000, Failed), fmt.Sprintf("%d.%d", d.Version/10000, d.Version%10000)
		}, "Postgres 14 or newer is needed"},
		{"postgres writes", func(d database) (State, string) {
			if d.Standby {
				return Failed, "it is a standby and takes no writes"
			}
			return OK, "it takes writes"
		}, "name the primary in postgres_dsn"},
		{"postgres durability", func(d database) (State, string) {
			if d.unsafe != nil {
				return Failed, d.unsafe.Error()
			}
			return OK, "fsync = " + d.text("fsync") + ", synchronous_commit = " + d.text("synchronous_commit")
		}, "set it in postgresql.conf and reload; look also at ALTER DATABASE, ALTER ROLE and the options in postgres_dsn"},
		{"postgres full_page_writes", func(d database) (State, string) {
			return unless(d.text("full_page_writes") != "on", Warning), d.text("full_page_writes")
		}, "set full_page_writes = on: a power cut may tear a page, unless the file system cannot"},
		{"postgres isolation", func(d database) (State, string) {
			return unless(d.text("default_transaction_isolation") != "read committed", Failed), d.text("default_transaction_isolation")
		}, "each connection asks for read committed when it opens: let the proxy in between pass options on"},
		{"postgres connections", database.connections, "raise max_connections (or the limit of the role), or run fewer replicas: each opens up to 26"},
		{"postgres memory", func(d database) (State, string) {
			return unless(d.Settings["shared_buffers"].Number < buffersEnough, Warning), "shared_buffers = " + d.text("shared_buffers")
		}, "a hint: set shared_buffers to a quarter of the memory, at least 128MB"},
		{"postgres WAL", func(d database) (State, string) {
			return unless(d.Settings["max_wal_size"].Number < walEnough, Warning), "max_wal_size = " + d.text("max_wal_size")
		}, "a hint: set max_wal_size to 1GB or more, or checkpoints come often"},
		{"postgres autovacuum", func(d database) (State, string) {
			off := d.text("autovacuum") != "on" || d.text("track_counts") != "on"
			return unless(off, Warning), "autovacuum = " + d.text("autovacuum") + ", track_counts = " + d.text("track_counts")
		}, "set both to on: the grants are rewritten all the time"},
		{"postgres transactions", func(d database) (State, string) {
			return unless(d.Longest > longOpen, Warning), fmt.Sprintf("the oldest that is open began %s ago", d.Longest.Round(time.Second))
		}, "end it (pg_stat_activity; it may be in another database): rows that died since it began stay in their pages"},
		{"postgres disk", func(d database) (State, string) {
			return Unknown, "the database has " + size(d.Size) + "; Postgres does not tell what is free"
		}, "watch the disk of its machine"},
	}
}

func ledgerChecks() []check[database] {
	return []check[database]{
		{"schema", func(d database) (State, string) {
			if len(d.missing) > 0 {
				return Failed, "migrations are missing: " + strings.Join(d.missing, ", ")
			}
			return OK, "all migrations are applied"
		}, "dispatcher migrate up; or start serve with migrate=on"},
		{
			"indexes", func(d database) (State, string) { return d.objects(migrations.Index, d.Indexes, "not valid") },
			"make it anew as in migrations/postgres; one that is not valid: REINDEX INDEX CONCURRENTLY name",
		},
		{
			"triggers", func(d database) (State, string) { return d.objects(migrations.Trigger, d.Triggers, "disabled") },
			"make it anew as in migrations/postgres; one that is disabled: ALTER TABLE ... ENABLE TRIGGER name",
		},
		{"statistics", database.statistics, "VACUUM (ANALYZE) of the table, and look why autovacuum does not come"},
	}
}

func (d database) text(setting string) string { return d.Settings[setting].Text }

// connections compares the number of connections that the replicas may open with the number that the
// role may use.
func (d database) connections() (State, string) {
	there := d.Settings["max_connections"].Number - d.Settings["superuser_reserved_connections"].Number
	if d.RoleLimit >= 0 {
		there = min(there, int64(d.RoleLimit))
	}
	need := int64(connectionsEach * d.replicas)
	return unless(need > there, Warning), fmt.Sprintf("%d for this role, %d in use; replicas of this kind (%d) open up to %d", there, d.InUse, d.replicas, need)
}

// objects checks that all expected objects of a kind exist in the schema and are in order.
func (d database) objects(kind string, have map[string]bool, bad string) (State, string) {
	if len(d.missing) > 0 {
		return Unknown, "the schema is not complete"
	}
	var wrong []string
	n := 0
	for _, o := range d.expected {
		if o.Kind != kind {
			continue
		}
		n++
		if good, there := have[o.Name]; !there {
			wrong = append(wrong, o.Name+" of "+o.Table+" is missing")
		} else if !good {
			wrong = append(wrong, o.Name+" of "+o.Table+" is "+bad)
		}
	}
	if len(wrong) > 0 {
		return Failed, strings.Join(wrong, ", ")
	}
	return OK, fmt.Sprintf("all %d", n)
}

// statistics finds tables with more dead rows than live rows, and tables with more rows changed since
// the last ANALYZE than live rows. Up to manyDead rows do not count.
func (d database) statistics() (State, string) {
	var wrong []string
	for _, t := range d.Statistics {
		switch {
		case t.Dead > max(manyDead, t.Live):
			wrong = append(wrong, fmt.Sprintf("%s has %d dead rows, vacuumed %s", t.Table, t.Dead, at(t.Vacuumed)))
		case t.Modified > max(manyDead, t.Live):
			wrong = append(wrong, fmt.Sprintf("%s changed by %d rows, analyzed %s", t.Table, t.Modified, at(t.Analyzed)))
		}
	}
	if len(wrong) > 0 {
		return Warning, strings.Join(wrong, ", ")
	}
	return OK, fmt.Sprintf("of %d tables", len(d.Statistics))
}

func at(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// unless returns state if so is true, and otherwise OK.
func unless(so bool, state State) State {
	if so {
		return state
	}
	return OK
}

// running returns the replicas whose last heartbeat is at most a minute old.
func running(list []store.Replica, now time.Time) []store.Replica {
	return slices.DeleteFunc(slices.Clone(list), func(r store.Replica) bool { return now.Sub(r.Seen) > time.Minute })
}

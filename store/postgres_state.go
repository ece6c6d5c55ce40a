package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// PostgresState is the state of a Postgres server and of this ledger on it.
type PostgresState struct {
	Version     int                // server_version_num, for example 150004 for 15.4
	Standby     bool               // the server is a standby, which accepts no writes
	Settings    map[string]Setting // settings as they apply to this connection
	RoleLimit   int                // maximum number of connections of the role; a negative value means no limit
	InUse       int                // client connections to the server
	Size        int64              // size of the database in bytes
	OldestTxAge time.Duration      // age of the oldest open transaction that keeps dead rows; a transaction of another role counts only if it is visible
	Indexes     map[string]bool    // key: name of an index of the ledger; value: whether it is valid
	Triggers    map[string]bool    // key: name of a trigger of the ledger; value: whether it is enabled
	Statistics  []TableStatistics  // at most maxTableStatistics tables, those with the most dead rows first
}

// Setting is one setting of the server.
type Setting struct {
	Text   string // the value as SHOW returns it
	Number int64  // bytes if the setting is a size, else the integer value; 0 if it is neither
}

// TableStatistics are the statistics of the server for one table.
type TableStatistics struct {
	Table                string
	Live, Dead, Modified int64      // numbers of rows; Modified counts the rows changed since the last ANALYZE
	Vacuumed, Analyzed   *time.Time // nil means never
}

const maxTableStatistics = 50

// PostgresState reads the state of the Postgres server and of this ledger, or returns an error on SQLite. A transaction in another database
// counts for OldestTxAge only if it has written, because only then it keeps dead rows of all databases.
func (s *Store) PostgresState(ctx context.Context) (state PostgresState, err error) {
	if s.slow == s.db {
		return state, errors.New("the ledger is not on Postgres")
	}
	in := s.customPlanSession()
	err = in.scanRow(ctx, []any{&state.Version, &state.Standby, &state.Size, &state.RoleLimit, &state.InUse, &state.OldestTxAge}, `
		SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_database_size(current_database()),
			(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
			(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
			(SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start) * 1000), 0)::bigint FROM pg_stat_activity
				WHERE (datname = current_database() OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid() AND backend_type = 'client backend')`)
	if err == nil {
		state.Settings, err = readSettings(ctx, in)
	}
	if err == nil {
		state.Indexes, err = readFlagsByName(ctx, in, `
			SELECT i.relname, x.indisvalid AND x.indisready FROM pg_index x
			JOIN pg_class i ON i.oid = x.indexrelid WHERE i.relnamespace = current_schema()::regnamespace`)
	}
	if err == nil {
		state.Triggers, err = readFlagsByName(ctx, in, `
			SELECT g.tgname, g.tgenabled IN ('O', 'A') FROM pg_trigger g
			JOIN pg_class t ON t.oid = g.tgrelid WHERE NOT g.tgisinternal AND t.relnamespace = current_schema()::regnamespace`)
	}
	if err == nil {
		state.Statistics, err = readStatistics(ctx, in)
	}
	if err != nil {
		return state, fmt.Errorf("reading the condition of the database: %w", err)
	}
	return state, nil
}

func readSettings(ctx context.Context, tx session) (settingByName map[string]Setting, err error) {
	type named struct {
		name string
		Setting
	}
	list, err := collect(ctx, tx, func(n *named) []any { return []any{&n.name, &n.Text, &n.Number} }, `
		SELECT name, current_setting(name),
			CASE WHEN unit IN ('B', 'kB', '8kB', 'MB') AND setting <> '-1' THEN pg_size_bytes(current_setting(name))
				WHEN vartype = 'integer' THEN setting::bigint ELSE 0 END
		FROM pg_settings`)
	all := make(map[string]Setting, len(list))
	for _, n := range list {
		all[n.name] = n.Setting
	}
	return all, err
}

// readFlagsByName runs query, whose rows have a name and a boolean, and returns the boolean of each name.
func readFlagsByName(ctx context.Context, tx session, query string) (flagByName map[string]bool, err error) {
	type named struct {
		name string
		is   bool
	}
	list, err := collect(ctx, tx, func(n *named) []any { return []any{&n.name, &n.is} }, query)
	all := make(map[string]bool, len(list))
	for _, n := range list {
		all[n.name] = n.is
	}
	return all, err
}

func readStatistics(ctx context.Context, tx session) ([]TableStatistics, error) {
	return collect(ctx, tx, func(t *TableStatistics) []any {
		return []any{&t.Table, &t.Live, &t.Dead, &t.Modified, &t.Vacuumed, &t.Analyzed}
	}, `
		SELECT relname, n_live_tup, n_dead_tup, n_mod_since_analyze, greatest(last_vacuum, last_autovacuum), greatest(last_analyze, last_autoanalyze)
		FROM pg_stat_user_tables WHERE schemaname = current_schema() ORDER BY n_dead_tup DESC, relname LIMIT $1`, maxTableStatistics)
}

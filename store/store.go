package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"modernc.org/sqlite"

	"github.com/fleetslots/dispatcher/migrations"
)

// Store is the ledger in one database. It is safe for concurrent use. Its own methods are for the whole ledger: check, migrate, warm,
// close, Retain, and the protection after a restore. All other methods belong to its parts, such as pools and tasks.
type Store struct {
	*connection
	pools
	batches
	tasks
	grants
	devices
	profiles
	credentials
	events
	news
	replicas
	hawkbit
	warmed warmedConns
}

func newStore(shared *connection) *Store {
	return &Store{
		connection: shared,
		pools:      pools{shared}, batches: batches{shared}, tasks: tasks{shared}, grants: grants{shared},
		devices: devices{shared}, profiles: profiles{shared}, credentials: credentials{shared},
		events: events{shared}, news: news{shared}, replicas: replicas{shared}, hawkbit: hawkbit{shared},
	}
}

// Options are the limits of a Postgres connection. A zero value means the default. If the DSN names a timeout, that value is used instead.
type Options struct {
	MaxOpenConns int // default 20; 5 for batches and 1 for pings are added. All replicas together must stay below max_connections

	StatementTimeout time.Duration // default 10 s
	LockTimeout      time.Duration // default 3 s
	IdleTimeout      time.Duration // maximum time for which a transaction may be idle; default 10 s
}

func (o Options) withDefaults() Options {
	o.MaxOpenConns = cmp.Or(o.MaxOpenConns, 20)
	o.StatementTimeout = cmp.Or(o.StatementTimeout, 10*time.Second)
	o.LockTimeout = cmp.Or(o.LockTimeout, 3*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 10*time.Second)
	return o
}

// OpenPostgres opens connections to dsn (URL or key=value form) and checks that the server answers. It does not migrate.
//
// Timeouts are set in the server, because a context that ends closes the connection and leaves the outcome of the statement unknown.
func OpenPostgres(ctx context.Context, dsn string, options Options) (*Store, error) {
	options = options.withDefaults()
	config, err := pq.NewConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("reading the Postgres DSN: %w", err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 3 * time.Second
	}
	if config.ApplicationName == "" {
		config.ApplicationName = "dispatcher"
	}
	// BinaryParameters saves one round trip for each statement that is not prepared.
	config.BinaryParameters = true
	config.Runtime = addSettingsToDSN(config.Runtime, options)
	mainDialer, pingDialer := &dialer{ioTimeout: answerTimeout(config.Runtime["statement_timeout"])}, &dialer{ioTimeout: pingTimeout}
	db, err := openConnections(config, options.MaxOpenConns, mainDialer)
	// The connections of slow have no time limit, because a COPY waits for the rows of the client, and a migration waits for locks.
	slow, slowErr := openConnections(config, slowConns, &dialer{})
	beating, beatingErr := openConnections(config, 1, pingDialer)
	if err := errors.Join(err, slowErr, beatingErr); err != nil {
		return nil, err
	}
	return openStore(ctx, &connection{
		db: db, slow: slow, snapshotDB: db, prepared: newPrepared(db), dialect: postgresDialect(), pinger: newPinger(beating, pingDialer, mainDialer), //nolint:contextcheck // the pinger lives as long as the store
	})
}

// openConnections returns a pool of at most maxConns connections, which connDialer opens.
func openConnections(config pq.Config, maxConns int, connDialer *dialer) (*sqlx.DB, error) {
	connector, err := pq.NewConnectorConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reading the Postgres DSN: %w", err)
	}
	connector.Dialer(connDialer)
	db := sqlx.NewDb(sql.OpenDB(connector), "postgres")
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	db.SetConnMaxLifetime(20 * time.Minute)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// slowConns is the maximum number of batches that are created concurrently. They have connections of their own, so that slow requests do
// not block reports.
const slowConns = 5

// addSettingsToDSN returns the settings of a connection: the settings of the store and dsnSettings, the settings of the DSN. A setting of the
// DSN replaces the setting of the store, except for the isolation level, on which the cap depends. The result takes precedence over
// settings of the database or the user.
//
// A prepared plan stays in use while its tables grow. A plan for small tables would read whole tables, or sort all rows that an index finds
// (a bitmap scan). So enable_seqscan and enable_bitmapscan are off. Then the planner expects high costs for a table that must be read
// whole, and would start parallel workers. To start them takes longer than the work, so they are off, too.
func addSettingsToDSN(dsnSettings map[string]string, options Options) (settingByName map[string]string) {
	all := map[string]string{
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		"jit":               "off",

		"max_parallel_workers_per_gather": "0",

		"statement_timeout":                   millisText(options.StatementTimeout),
		"lock_timeout":                        millisText(options.LockTimeout),
		"idle_in_transaction_session_timeout": millisText(options.IdleTimeout),
	}
	maps.Copy(all, dsnSettings)
	// Each statement must read all earlier commits, because a claim waits for the lock of its pool and must then read the present capacity.
	all["default_transaction_isolation"] = "read committed"
	return all
}

func millisText(duration time.Duration) string { return strconv.FormatInt(duration.Milliseconds(), 10) }

// OpenSQLite opens or creates the database file at path, for one process. It does not migrate.
//
// All writes share one connection. Goroutines wait for it in a fair order, unlike in SQLite's busy handler. Snapshots have read-only
// connections, so they do not block writers.
func OpenSQLite(ctx context.Context, path string) (*Store, error) {
	_, missing := os.Stat(path)
	if err := makeFilePrivate(path); err != nil {
		return nil, sqliteFileError(path, err)
	}
	file := url.URL{Path: filepath.ToSlash(path)}
	dsn := "file:" + file.EscapedPath() + "?_pragma=busy_timeout(5000)"
	db, err := openSQLiteFile(dsn+"&_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=cache_size(-65536)", 1)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	looking, err := openSQLiteFile(dsn+"&_pragma=query_only(1)", maxSnapshots)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", path, err), db.Close())
	}
	s, err := openStore(ctx, &connection{db: db, slow: db, snapshotDB: looking, prepared: newPrepared(db), file: path, dialect: sqliteDialect()})
	if err != nil && missing != nil { // remove the new file: a later start would treat an empty file as a damaged ledger
		removeFileIfEmpty(path)
	}
	return s, sqliteFileError(path, err)
}

func removeFileIfEmpty(path string) {
	if file, err := os.Stat(path); err == nil && file.Size() == 0 {
		_ = os.Remove(path)
	}
}

// makeFilePrivate makes sure that only the owner can access the file at path, because the file holds hashes of tokens and reports of devices.
// If the file is missing, makeFilePrivate creates it. SQLite gives its -wal and -shm files the same permissions.
func makeFilePrivate(path string) error {
	if there, err := os.Stat(path); err == nil && there.Size() == 0 {
		return fmt.Errorf("the ledger %s is empty (0 bytes), so its content is lost: %s", path, remedyOfDamage)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return file.Chmod(0o600)
}

// openSQLiteFile opens an SQLite file with at most maxConns connections.
func openSQLiteFile(dsn string, maxConns int) (*sqlx.DB, error) {
	connector, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	db := sqlx.NewDb(sql.OpenDB(connector), "sqlite")
	db.SetMaxOpenConns(maxConns)
	return db, nil
}

// openStore returns the ledger on shared, or an error if the database does not answer.
func openStore(ctx context.Context, shared *connection) (*Store, error) {
	shared.snapshots = make(chan struct{}, maxSnapshots)
	s := newStore(shared)
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, s.Close()) //nolint:contextcheck // closing must not end with ctx
	}
	return s, nil
}

// Close closes all connections. No other call may be in progress.
func (s *Store) Close() error {
	s.pinger.shutDown()
	var err error
	if s.file == "" { // SQLite has no network, and a connection may not end before its statements
		err = s.prepared.closeIdleConns()
	}
	return errors.Join(err, s.snapshotDB.Close(), s.db.Close(), s.slow.Close())
}

// Ping returns an error if the database does not answer.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.db.PingContext(ctx); err != nil {
		return fmt.Errorf("reaching the %s database: %w", s.name, err)
	}
	return nil
}

// Ready returns an error if the database does not answer, or if its disk was full recently.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.Ping(ctx); err != nil {
		return err
	}
	return s.disk.checkNotFull(time.Now()) //nolint:forbidigo // a time of this process alone
}

// CheckSettings returns an error that names each setting of the server that would break a guarantee of the ledger (forbiddenSettings).
func (s *Store) CheckSettings(ctx context.Context) error {
	var wrong []error
	for _, r := range s.forbidden {
		var value string
		if err := s.db.GetContext(ctx, &value, "SHOW "+r.setting); err != nil {
			return fmt.Errorf("reading %s: %w", r.setting, err)
		}
		if value == r.value {
			wrong = append(wrong, fmt.Errorf("the database has %s = %s and %s: set it to %s", r.setting, r.value, r.consequence, r.safeValue))
		}
	}
	return errors.Join(wrong...)
}

// Migrate applies the missing migrations of the database and returns the number of applied migrations. Replicas may call it concurrently.
func (s *Store) Migrate(ctx context.Context) (applied int, err error) {
	n, err := migrations.Up(ctx, s.slow.DB, s.name)
	if isDamaged(err) {
		err = sqliteFileError(s.file, err)
	}
	return n, err
}

// MigrateDown reverts the newest migration, and deletes the data that it added.
func (s *Store) MigrateDown(ctx context.Context) error {
	return migrations.Down(ctx, s.slow.DB, s.name)
}

// MigrationStatus returns all migrations, oldest first.
func (s *Store) MigrationStatus(ctx context.Context) ([]migrations.State, error) {
	return migrations.Status(ctx, s.slow.DB, s.name)
}

// Clock returns the time of the database's clock.
func (s *Store) Clock(ctx context.Context) (time.Time, error) { return s.readSession().readClock(ctx) }

package store

import (
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

// Store is the ledger in one database. It is safe for concurrent use. It is opened,
// migrated, kept warm and closed as a whole; all else are the methods of its parts,
// one for each noun of the ledger.
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
	warm warmth
}

// storeOn is the ledger with all its parts on one connection.
func storeOn(c *connection) *Store {
	return &Store{
		connection: c,
		pools:      pools{c}, batches: batches{c}, tasks: tasks{c}, grants: grants{c},
		devices: devices{c}, profiles: profiles{c}, credentials: credentials{c},
		events: events{c}, news: news{c}, replicas: replicas{c},
	}
}

// Options are the limits of a Postgres connection; zero values are the
// defaults. A timeout that the DSN names stays as the DSN says.
type Options struct {
	MaxOpenConns int           // default 20, and up to 5 more for new batches; the sum over all replicas must stay below max_connections
	MaxIdleConns int           // default MaxOpenConns
	ConnLifetime time.Duration // default 20 min
	ConnIdleTime time.Duration // default 5 min

	StatementTimeout time.Duration // default 10 s
	LockTimeout      time.Duration // default 3 s
	IdleTimeout      time.Duration // inside a transaction; default 10 s
}

func (o Options) withDefaults() Options {
	if o.MaxOpenConns == 0 {
		o.MaxOpenConns = 20
	}
	if o.MaxIdleConns == 0 {
		o.MaxIdleConns = o.MaxOpenConns
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&o.ConnLifetime, 20 * time.Minute},
		{&o.ConnIdleTime, 5 * time.Minute},
		{&o.StatementTimeout, 10 * time.Second},
		{&o.LockTimeout, 3 * time.Second},
		{&o.IdleTimeout, 10 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	return o
}

// OpenPostgres opens a pool of connections to dsn (URL or key=value form) and
// checks that the server answers. It does not migrate.
//
// Timeouts live in the server, because a cancelled context costs a connection
// and says nothing about the statement's outcome.
func OpenPostgres(ctx context.Context, dsn string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
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
	// One round trip for each statement that is not prepared.
	config.BinaryParameters = true
	config.Runtime = withSettings(config.Runtime, opts)
	all, own := &dialer{limit: answerLimit(config.Runtime["statement_timeout"])}, &dialer{limit: pulseLimit}
	db, err := openPool(config, opts, opts.MaxOpenConns, all)
	// A COPY waits for whoever sends its rows, a migration for its tables.
	slow, slowErr := openPool(config, opts, slowConns, &dialer{})
	beating, beatingErr := openPool(config, opts, 1, own)
	if err := errors.Join(err, slowErr, beatingErr); err != nil {
		return nil, err
	}
	return opened(ctx, &connection{
		db: db, slow: slow, looking: db, prepared: newPrepared(db), dialect: postgres(), pulse: newPulse(beating, own, all), //nolint:contextcheck // it lives as long as the store
	})
}

// openPool returns up to most connections of a dialer.
func openPool(config pq.Config, opts Options, most int, from *dialer) (*sqlx.DB, error) {
	connector, err := pq.NewConnectorConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reading the Postgres DSN: %w", err)
	}
	connector.Dialer(from)
	db := sqlx.NewDb(sql.OpenDB(connector), "postgres")
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(min(most, opts.MaxIdleConns))
	db.SetConnMaxLifetime(opts.ConnLifetime)
	db.SetConnMaxIdleTime(opts.ConnIdleTime)
	return db, nil
}

// slowConns bounds the batches that are sent at the same time: slow ones keep
// no report waiting for a connection.
const slowConns = 5

// withSettings adds ours to those that the DSN names, which win but for the one that
// the cap rests on. Both win over what is set for the database or the user. A prepared
// plan outlives the size of its tables: made while they are small it would read
// them whole, or all that an index finds, to sort it (a bitmap), and still do so when a million
// tasks were queued since. A table that must be read whole then seems so dear to the planner
// that it starts processes to share the work, which takes longer than the work.
func withSettings(runtime map[string]string, opts Options) map[string]string {
	all := map[string]string{
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		"jit":               "off",

		"max_parallel_workers_per_gather": "0",

		"statement_timeout":                   millisText(opts.StatementTimeout),
		"lock_timeout":                        millisText(opts.LockTimeout),
		"idle_in_transaction_session_timeout": millisText(opts.IdleTimeout),
	}
	maps.Copy(all, runtime)
	// Each statement must see what was committed before it began: a claim
	// waits for its pool's lock, and then reads the capacity.
	all["default_transaction_isolation"] = "read committed"
	return all
}

func millisText(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// OpenSQLite opens or creates the database file at path, for one process. It
// does not migrate.
//
// There is one connection: SQLite has one writer, and taking turns for it in
// Go is fair where its own busy handler is not. Beside it some only look: who
// reads a snapshot keeps nobody from writing.
func OpenSQLite(ctx context.Context, path string) (*Store, error) {
	_, missing := os.Stat(path)
	if err := keepPrivate(path); err != nil {
		return nil, ofFile(path, err)
	}
	file := url.URL{Path: filepath.ToSlash(path)}
	dsn := "file:" + file.EscapedPath() + "?_pragma=busy_timeout(5000)"
	db, err := openFile(dsn+"&_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)", 1)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", path, err)
	}
	looking, err := openFile(dsn+"&_pragma=query_only(1)", snapshotsMost)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", path, err), db.Close())
	}
	s, err := opened(ctx, &connection{db: db, slow: db, looking: looking, file: path, dialect: sqliteDialect()})
	if err != nil && missing != nil { // a later start would take the empty file for a damaged ledger
		removeEmpty(path)
	}
	return s, ofFile(path, err)
}

// removeEmpty removes a file of 0 bytes.
func removeEmpty(path string) {
	if file, err := os.Stat(path); err == nil && file.Size() == 0 {
		_ = os.Remove(path)
	}
}

// keepPrivate makes the file, or takes the rights of others from it: it holds hashes of
// tokens, and all that devices say. SQLite gives the files beside it the same rights.
func keepPrivate(path string) error {
	if there, err := os.Stat(path); err == nil && there.Size() == 0 {
		return fmt.Errorf("%s has 0 bytes, so it has lost its content: %s", path, remedyOfDamage)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return file.Chmod(0o600)
}

func openFile(dsn string, most int) (*sqlx.DB, error) {
	connector, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	db := sqlx.NewDb(sql.OpenDB(connector), "sqlite")
	db.SetMaxOpenConns(most)
	return db, nil
}

func opened(ctx context.Context, c *connection) (*Store, error) {
	c.snapshots = make(chan struct{}, snapshotsMost)
	s := storeOn(c)
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, s.Close()) //nolint:contextcheck // closing goes on without it
	}
	return s, nil
}

// Close closes all connections. Nothing may be under way.
func (s *Store) Close() error {
	s.pulse.leave()
	return errors.Join(s.prepared.leave(), s.looking.Close(), s.db.Close(), s.slow.Close())
}

// Ping checks that the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.db.PingContext(ctx); err != nil {
		return fmt.Errorf("reaching the %s database: %w", s.name, err)
	}
	return nil
}

// Ready checks that the database answers, and that its disk was not full lately.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.Ping(ctx); err != nil {
		return err
	}
	return s.disk.check(time.Now()) //nolint:forbidigo // a time of this process alone
}

// CheckSettings returns an error that names each setting of the server with which a
// promise would be broken: fsync or synchronous_commit off, triggers that do not run.
func (s *Store) CheckSettings(ctx context.Context) error {
	var wrong []error
	for _, r := range s.refused {
		var value string
		if err := s.db.GetContext(ctx, &value, "SHOW "+r.setting); err != nil {
			return fmt.Errorf("reading %s: %w", r.setting, err)
		}
		if value == r.value {
			wrong = append(wrong, fmt.Errorf("the database has %s = %s and %s: set it to %s", r.setting, r.value, r.so, r.instead))
		}
	}
	return errors.Join(wrong...)
}

// Migrate applies what is missing of the schema and says how many migrations
// that were. Replicas may call it at once.
func (s *Store) Migrate(ctx context.Context) (int, error) {
	n, err := migrations.Up(ctx, s.slow.DB, s.name)
	if isDamaged(err) {
		err = ofFile(s.file, err)
	}
	return n, err
}

// MigrateDown takes the newest migration back, and what it held with it.
func (s *Store) MigrateDown(ctx context.Context) error {
	return migrations.Down(ctx, s.slow.DB, s.name)
}

// MigrationStatus lists all migrations, oldest first.
func (s *Store) MigrationStatus(ctx context.Context) ([]migrations.State, error) {
	return migrations.Status(ctx, s.slow.DB, s.name)
}

// Clock reads the database's clock.
func (s *Store) Clock(ctx context.Context) (now time.Time, err error) {
	err = s.read().row(ctx, `SELECT {now}`, instant{&now})
	return now, err
}

package store

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fleetslots/dispatcher/migrations"
)

// dialect is all that differs between the two databases. SQL texts are
// Postgres' but for words in braces:
//
//	{now}        the database's clock at that moment, not at the transaction's start
//	{ms}         one millisecond: {now} + lease_ms * {ms}
//	{epoch}      1970, to turn milliseconds into a time: {epoch} + $1 * {ms}
//	{least}      the smaller of its arguments
//	{json}       turns the text before it into the type of payload and output
//	{lock}       FOR UPDATE; SQLite's only writer needs no row locks
//	{lock t}     FOR UPDATE OF t
//	{lock b}     FOR UPDATE OF b
//	{share p}    FOR KEY SHARE OF p: keeps p from being deleted
//	{share}      FOR SHARE: keeps rows from being changed
//	{skip t}     FOR UPDATE OF t SKIP LOCKED
//	{skip t, g}  FOR UPDATE OF t, g SKIP LOCKED
//	{best (} {) t}  joins the rows t that a query in between finds for each row before it
//	{columns of best}  what that query is to select
//	{batch of w}, {pool of b}, ...  looks up the batch b, the pool p or the device d that a row before it
//	             names; there may be no such device, and no batch of a grant g that is none
//	{last event} the highest id of an event that was given
//	{new xid}    a transaction id above all that were given
//	{oldest xid} the lowest transaction id still under way
//	{next turn}  one that no change of a token has which is seen now
//	{bytes}      compares the text before it byte by byte
//	{keys of tags}, {keys of attributes}  rows k (key), of a device in looked
//	{tagged $1}  device d has all the tags of the JSON object $1; or $3
//	{token}      the next fencing token, for a grant that holds its unique keys
//	{last token} the last one given, 0 before the first
//	{unhex hash} the bytes that the text hash stands for
//	{given}      the grants, as UPDATE has just given them their tokens
//	{ids}, {claims}, ... the rows of the JSON array $1, see inputs
type dialect struct {
	*wording

	name       string
	refused    []refusal          // settings that must not be so
	lockShared string             // takes the locks of the pools of {claims}, and names them; empty: not needed
	tryShared  string             // takes those that nobody else has
	lockAlone  string             // takes the lock of the pool $1 against all others
	lockKey    string             // takes the idempotency key $1, $2, or says false
	lockGrants string             // waits for the writers of grants, and lets others wait
	leaps      []string           // take the numbers that are given out $1 further, and return where they are then
	snapshot   sql.IsolationLevel // of a transaction that reads one snapshot
	tryFold    string             // true: nobody else folds, until the end of the transaction; empty: not needed
	bulk       string             // lifts the statement timeout of one transaction
	addTasks   string             // prepared once per batch, run once per task
	chains     bool               // WITH takes changes: several run as one statement
	flush      bool               // addTasks needs a last run without arguments
}

// refusal is a value of a setting with which a promise would be broken.
type refusal struct{ setting, value, so, instead string }

func refusals() []refusal {
	return []refusal{
		{"fsync", "off", "would lose what it committed", "on"},
		{"synchronous_commit", "off", "would lose what it committed", "on"},
		{"session_replication_role", "replica", "would run no triggers", "origin"},
	}
}

// inputs are the batches that statements take as one JSON array, in $1. The
// names of the columns are those of the JSON members.
func inputs() map[string]string {
	return map[string]string{
		"ids":      "id bigint",
		"names":    "n bigint, name text",
		"claims":   "n bigint, task bigint, device text, pool text, slot bigint, lease text",
		"reported": "n bigint, task bigint, token bigint, device text",
		"seen":     "device text, at_ms bigint, reach smallint",
		"imports":  "n bigint, device text, tags text, hash text, profile text",
		"lapses":   "lease_ms bigint, before_ms bigint",
		"openings": "id bigint, name text, from_ms bigint, until_ms bigint, due_ms bigint",
		"endings": "task bigint, token bigint, cause text, output text, dropped bigint, error text, state text, counted bigint," +
			" returned bigint, delay_ms bigint, event text, actor text, detail text",
	}
}

// postgresWords are the words in braces but for inputs and lookUps.
func postgresWords() []string {
	return []string{
		"{now}", "clock_timestamp()",
		"{ms}", "interval '1 millisecond'",
		"{epoch}", "timestamptz 'epoch'",
		"{age}", "CAST(date_part('epoch', clock.now - at) * 1000 AS bigint)",
		"{least}", "least",
		"{json}", "::json",
		"{lock}", "FOR UPDATE",
		"{lock t}", "FOR UPDATE OF t",
		"{lock b}", "FOR UPDATE OF b",
		"{share p}", "FOR KEY SHARE OF p",
		"{share}", "FOR SHARE",
		"{skip t}", "FOR UPDATE OF t SKIP LOCKED",
		"{skip t, g}", "FOR UPDATE OF t, g SKIP LOCKED",
		"{best (}", "CROSS JOIN LATERAL (",
		"{) t}", ") AS t",
		"{columns of best}", "t.id, t.own_priority, t.priority, t.retry_at, t.attempts, t.payload",
		"{last event}", "CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq",
		// Not the end of a snapshot: that is behind the last one that ended, and
		// does not tell what runs beyond from what has not begun.
		"{new xid}", "pg_current_xact_id()::text::bigint",
		"{oldest xid}", "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
		"{next turn}", "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
		"{bytes}", `COLLATE "C"`,
		"{keys of tags}", "jsonb_object_keys(looked.tags) AS k (key)",
		"{keys of attributes}", "json_object_keys(looked.attributes) AS k (key)",
		"{tagged $1}", "d.tags @> $1::jsonb",
		"{tagged $3}", "d.tags @> $3::jsonb",
		"{unhex hash}", "decode(hash, 'hex')",
		"{given}", "given",
		"{token}", "nextval('grant_token')",
		"{last token}", "(SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM grant_token)",
	}
}

func postgres() dialect {
	words := append(postgresWords(), lookUps()...)
	// The limits change nothing but the plan: without them Postgres expects a
	// hundred rows of any array, and reads whole tables to join them. With each
	// limit that it does not know it expects a tenth: here, one row.
	const limit = " LIMIT json_array_length($1::json)"
	for name, columns := range inputs() {
		words = append(words, "{"+name+"}",
			"(SELECT * FROM (SELECT * FROM json_to_recordset($1::json) AS rows("+columns+")"+limit+") AS given"+limit+") AS "+name)
	}
	// Two integers: spaces of their own, apart from the migrations' lock.
	const poolLock = "(20060, hashtext("
	const poolsOfClaims = `(SELECT DISTINCT pool COLLATE "C" AS pool FROM {claims} ORDER BY 1 OFFSET 0) AS pools`
	const foldLock = "(20062, 0)"
	return dialect{
		name:       migrations.Postgres,
		wording:    newWording(words),
		refused:    refusals(),
		lockShared: `SELECT pool FROM ` + poolsOfClaims + ` WHERE pg_advisory_xact_lock_shared` + poolLock + `pool)) IS NOT NULL`,
		tryShared:  `SELECT pool FROM ` + poolsOfClaims + ` WHERE pg_try_advisory_xact_lock_shared` + poolLock + `pool))`,
		lockAlone:  `SELECT pg_advisory_xact_lock` + poolLock + `$1))`,
		lockKey:    `SELECT pg_try_advisory_xact_lock(20062, hashtext($1::bigint || ' ' || $2))`,
		// Not undone with the transaction: numbers only ever go up.
		lockGrants: `LOCK TABLE grants IN SHARE ROW EXCLUSIVE MODE`,
		leaps: leaps(`SELECT setval('grant_token', last_value + CAST($1 AS bigint)) FROM grant_token`,
			`SELECT setval('%[1]s_id_seq', last_value + CAST($1 AS bigint)) FROM %[1]s_id_seq`),
		bulk:     `SET LOCAL statement_timeout = 0`,
		addTasks: `COPY tasks (batch, pool, device, priority, own_priority, payload) FROM STDIN`,
		chains:   true,
		flush:    true,
		snapshot: sql.LevelRepeatableRead,
		tryFold:  `SELECT pg_try_advisory_xact_lock` + foldLock,
	}
}

// lookUps are joins that the planner makes one row after the other: OFFSET 0 keeps it from
// making them in another way.
func lookUps() []string {
	return []string{
		"{task w}", "CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = w.id OFFSET 0) AS t",
		"{event w}", "CROSS JOIN LATERAL (SELECT * FROM events WHERE id = w.id OFFSET 0) AS e",
		"{batch of w}", "CROSS JOIN LATERAL (SELECT * FROM batches WHERE id = w.batch OFFSET 0) AS b",
		"{batch of t}", "CROSS JOIN LATERAL (SELECT * FROM batches WHERE id = t.batch OFFSET 0) AS b",
		"{pool of b}", "CROSS JOIN LATERAL (SELECT * FROM pools WHERE name = b.pool OFFSET 0) AS p",
		"{device of w}", "LEFT JOIN LATERAL (SELECT * FROM devices WHERE id = w.name OFFSET 0) AS d ON TRUE",
		"{device of t}", "LEFT JOIN LATERAL (SELECT * FROM devices WHERE id = t.device OFFSET 0) AS d ON TRUE",
		"{batch of g}", "LEFT JOIN LATERAL (SELECT * FROM batches WHERE id = g.batch OFFSET 0) AS b ON TRUE",
	}
}

func sqliteDialect() dialect {
	words := []string{
		"{now}", "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
		"{ms}", "1",
		"{epoch}", "0",
		"{age}", "(clock.now - at)",
		"{least}", "min",
		"{json}", "",
		"{lock}", "",
		"{lock t}", "",
		"{lock b}", "",
		"{share p}", "",
		"{share}", "",
		"{skip t}", "",
		"{skip t, g}", "",
		"{batch of w}", "CROSS JOIN batches b ON b.id = w.batch",
		"{batch of t}", "JOIN batches b ON b.id = t.batch",
		"{pool of b}", "CROSS JOIN pools p ON p.name = b.pool",
		"{device of w}", "LEFT JOIN devices d ON d.id = w.name",
		"{device of t}", "LEFT JOIN devices d ON d.id = t.device",
		"{batch of g}", "LEFT JOIN batches b ON b.id = g.batch",
		"{best (}", "CROSS JOIN tasks t ON t.id IN (",
		"{) t}", ")",
		"{task w}", "CROSS JOIN tasks t ON t.id = w.id",
		"{event w}", "CROSS JOIN events e ON e.id = w.id",
		"{columns of best}", "t.id",
		"{last event}", "coalesce(max(id), 0) FROM events", // one writer: ids are given in the order of commits
		"{new xid}", "0",
		"{oldest xid}", "0",
		"{next turn}", "(SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'token_changes')",
		"{bytes}", "",
		"{keys of tags}", "json_each(looked.tags) AS k",
		"{keys of attributes}", "json_each(looked.attributes) AS k",
		"{tagged $1}", hasTags("$1"),
		"{tagged $3}", hasTags("$3"),
		"{unhex hash}", "unhex(hash)",
		"{given}", "grants",
		"{token}", "token", // given by a trigger
		"{last token}", "(SELECT value FROM grant_token)",
	}
	for name, columns := range inputs() {
		words = append(words, "{"+name+"}", "(SELECT "+members(columns)+" FROM json_each($1)) AS "+name)
	}
	return dialect{
		name:    migrations.SQLite,
		wording: newWording(words),
		leaps: leaps(`UPDATE grant_token SET value = value + $1 RETURNING value`,
			`UPDATE sqlite_sequence SET seq = seq + $1 WHERE name = '%[1]s' RETURNING seq`),
		addTasks: `INSERT INTO tasks (batch, pool, device, priority, own_priority, payload) VALUES ($1, $2, $3, $4, $5, $6)`,
	}
}

// hasTags is {tagged} where there are no operators for it.
func hasTags(wanted string) string {
	return `NOT EXISTS (SELECT 1 FROM json_each(` + wanted + `) AS wanted WHERE NOT EXISTS (
		SELECT 1 FROM json_each(d.tags) AS has WHERE has.key = wanted.key AND has.value = wanted.value))`
}

// leaps are the statements for tokens and for all numbers that are shown
// outside: somebody may know one that the ledger has lost.
func leaps(ofTokens, ofTable string) []string {
	all := []string{ofTokens}
	for _, table := range []string{"tasks", "batches", "events", "tokens"} {
		all = append(all, fmt.Sprintf(ofTable, table))
	}
	return all
}

// members turns "n bigint, name text" into what SQLite reads them with.
func members(columns string) string {
	var list []string
	for column := range strings.SplitSeq(columns, ",") {
		name := strings.Fields(column)[0]
		list = append(list, fmt.Sprintf("value->>'$.%s' AS %s", name, name))
	}
	return strings.Join(list, ", ")
}

// retryable: the server undid the transaction for the sake of another one.
func retryable(err error) bool {
	var e *pq.Error
	if !errors.As(err, &e) {
		return false
	}
	return slices.Contains([]pqerror.Code{pqerror.TRDeadlockDetected, pqerror.TRSerializationFailure}, e.Code)
}

// taken: a row of that unique key is there already.
func taken(err error) bool {
	if e := (*pq.Error)(nil); errors.As(err, &e) {
		return e.Code == pqerror.UniqueViolation
	}
	e := (*sqlite.Error)(nil)
	return errors.As(err, &e) && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// refused: the server itself said that the COMMIT failed. A FATAL error is no
// such answer: a backend told to end may say so after it committed.
func refused(err error) bool {
	var e *pq.Error
	return errors.As(err, &e) && e.Severity == "ERROR"
}

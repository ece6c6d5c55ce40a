package store

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/fleetslots/dispatcher/migrations"
)

// dialect holds all differences between the two databases. SQL texts are written for Postgres. SQLite leaves out clauses such as FOR UPDATE,
// because it has only one writer and needs no row locks. Both databases replace the words in braces:
//
//	{now}        the database's clock at this moment, not at the start of the transaction
//	{ms}         one millisecond: {now} + lease_ms * {ms}
//	{epoch}      the start of 1970, to turn milliseconds into a time: {epoch} + $1 * {ms}
//	{minute of at}, {this minute}  minutes from 1970 to the column "at", or to now
//	{since began} milliseconds from the column "began" to the column "at"
//	{pending of points}  task t is open, in the batch points.batch, and has an id >= points.at. Postgres gets a range of the index
//	             (batch, state, id), because otherwise it may read along the primary key. SQLite gets plain conditions, because it
//	             uses only the first column for such a range
//	{pending of ids}  task t is open and in the batch ids.id; written in two forms, as {pending of points} is
//	{first word} the detail of the event e up to its first space
//	{best (} {) o}  enclose a query for tasks, which runs for each row before it; its tasks are left-joined as o
//	{columns of best}  the columns that the query between {best (} and {) o} must select
//	{shown and held}   maximum number of tasks in one group of a batch (viewsText): it is higher if policies apply
//	{task of n}  the task of row w: element number w.n of the list $2
//	{device of w}, {pool of c}, ...  joins the device d, the batch b or c, the pool p, ... that a row
//	             before it names; all columns are NULL if there is no such row and the join is a LEFT JOIN
//	{last event} the highest event id given so far, as the end of a SELECT
//	{new xid}    a transaction id above all transaction ids that were given
//	{oldest xid} the lowest id of a transaction that is still in progress
//	{next turn}  a number above the column "turn" of all rows of token_changes that can be read now
//	{keys of tags}, {keys of attributes}  rows k with the column key: one for each tag or attribute of the device in row looked
//	{tagged $1}, {tagged $3}  device d has all the tags of the JSON object in this argument
//	{token}      the next fencing token, for a grant that was inserted before and so holds its unique keys
//	{last token} the last fencing token given, 0 before the first
//	{unhex hash} the bytes of the hexadecimal text hash
//	{given}      the grants to which the UPDATE of giveTokens has just given tokens
//	{ended}      the grants of {endings}, joined with the columns of endings
//	{ids}, {claims}, ... the rows of the JSON array $1, see inputReplacements
//	{claims once}, ... the beginning of a WITH in which these rows are read only once, see withInputReadOnceSQL
type dialect struct {
	*sqlTranslator

	name                    string
	forbidden               []forbiddenSetting // forbidden values of settings
	lockShared              string             // takes the shared locks of the pools {names} one by one and returns the names; empty if the dialect needs none
	tryShared               string             // takes the shared lock of each pool in {names} whose lock is free; returns the names of the locked pools
	lockExclusive           string             // takes the exclusive lock of the pool $1, or of another name (lockNameExclusively); empty if not needed
	disableLockTimeout      string             // disables the lock timeout in one transaction; empty if not needed
	tryLockKey              string             // tries to lock the idempotency key $1, $2; returns false if another transaction holds it
	lockLateResults         string             // locks the late results of the device $1 until the end of the transaction; empty if not needed
	lockGrants              string             // waits for transactions that write grants, and blocks new ones until this transaction ends
	advanceNumbers          []string           // statements that increase the last given numbers by $1 and return the result
	snapshotIsolation       sql.IsolationLevel // isolation level of a transaction that reads one snapshot
	lockNews                string             // blocks other transactions from giving ids to news until this one ends; empty if not needed
	tryFold                 string             // returns true if no other transaction folds, and locks folding until this one ends; empty if not needed
	tagIndexSQL             string             // lets one transaction use the index of tags; empty if there is none
	disableStatementTimeout string             // disables the statement timeout in one transaction
	addTasks                string             // inserts one task with the values of NewTask.insertArgs; prepared once per batch
	canChainWrites          bool               // WITH accepts statements that write, so several can run as one
	needsFlush              bool               // addTasks needs a last run without arguments
	brackets                string             // the brackets around a list of numbers
}

// forbiddenSetting is a value of a setting of the database that would break a guarantee of the ledger.
type forbiddenSetting struct{ setting, value, consequence, safeValue string }

// forbiddenSettings returns the forbidden settings of Postgres.
func forbiddenSettings() []forbiddenSetting {
	return []forbiddenSetting{
		{"fsync", "off", "would lose what it committed", "on"},
		{"synchronous_commit", "off", "would lose what it committed", "on"},
		{"session_replication_role", "replica", "would run no triggers", "origin"},
	}
}

// inputReplacements returns the columns of each word such as {ids}. In a statement, the word stands for rows, one for each object in the JSON
// array $1. A column has the name of a member of these objects. The first column must be a number >= 0, because the condition few is added to
// it.
func inputReplacements() (columnsByWord map[string]string) {
	return map[string]string{
		"ids":       "id bigint",
		"points":    "batch bigint, at bigint",
		"names":     "n bigint, name text",
		"newcomers": "n bigint, name text, registrant text, detail text, blocked boolean",
		"claims":    "n bigint, task bigint, device text, pool text, slot bigint, lease text",
		"reported":  "n bigint, task bigint, token bigint, device text, lease_ms bigint",
		"seen":      "at_ms bigint, device text, quiet_ms bigint, reach smallint, wire text",
		"imports":   "n bigint, device text, tags text, hash text, profile text",
		"changed":   "n bigint, device text, tags text, profile text, detail text",
		"lapses":    "lease_ms bigint, before_ms bigint",
		"uses":      "token bigint, requests bigint",
		"news":      "batch bigint, device text, pool text",
		"ends":      "task bigint, reason text",
		"openings":  "id bigint, name text, from_ms bigint, until_ms bigint, due_ms bigint",
		"endings": "task bigint, token bigint, cause text, output text, dropped bigint, error text, state text, counted bigint," +
			" returned bigint, delay_ms bigint, event text, actor text, actor_kind text",
	}
}

// postgresReplacements returns words in braces, each followed by its replacement for Postgres. inputReplacements and lookUpJoinReplacements
// have the other words.
func postgresReplacements() (wordsWithReplacements []string) {
	return []string{
		"{now}", "clock_timestamp()",
		"{ms}", "interval '1 millisecond'",
		"{epoch}", "timestamptz 'epoch'",
		"{minute of at}", "CAST(floor(date_part('epoch', at) / 60) AS bigint)",
		"{this minute}", "(SELECT CAST(floor(date_part('epoch', clock_timestamp()) / 60) AS bigint))",
		"{since began}", "CAST(date_part('epoch', at - began) * 1000 AS bigint)",
		"{first word}", "split_part(e.detail, ' ', 1)",
		"{pending of points}", "(t.batch, t.state, t.id) >= (points.batch, 'pending', points.at) AND t.batch <= points.batch",
		"{pending of ids}", "(t.batch, t.state, t.id) > (ids.id, 'pending', 0) AND (t.batch, t.state, t.id) < (ids.id, 'pending', 9223372036854775807)",
		"{best (}", "LEFT JOIN LATERAL (",
		"{) o}", ") AS o ON TRUE",
		"{columns of best}", "t.id, t.own_priority, t.priority, t.retry_at, t.not_before, t.attempts, t.started, t.payload, t.lease_ms, t.not_after",
		"{task of n}", "(CAST($2 AS bigint[]))[w.n + 1]",
		"{shown and held}", "CASE WHEN " + hasPoliciesSQL + " THEN 9 ELSE 2 END",
		"{last event}", "CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq",
		// The upper end of a snapshot (pg_snapshot_xmax) is not a safe bound, because a transaction that runs now can have a higher id.
		"{new xid}", "pg_current_xact_id()::text::bigint",
		"{oldest xid}", "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
		"{next turn}", "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
		"{keys of tags}", "jsonb_object_keys(looked.tags) AS k (key)",
		"{keys of attributes}", "json_object_keys(looked.attributes) AS k (key)",
		"{tagged $1}", "d.tags @> $1::jsonb",
		"{tagged $3}", "d.tags @> $3::jsonb",
		"{unhex hash}", "decode(hash, 'hex')",
		"{given}", "given",
		"{ended}", "ended",
		"{token}", "nextval('grant_token')",
		"{last token}", "(SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM grant_token)",
	}
}

func postgresDialect() dialect {
	words := append(postgresReplacements(), lookUpJoinReplacements()...)
	// The condition few is always true, so it affects only the plan. Without it, Postgres expects 100 rows in any array, and reads whole tables
	// to join them. With a range condition, Postgres expects one row. (A LIMIT would help, too, but would read the array twice.)
	const few = " BETWEEN 0 AND 9223372036854775807"
	for name, columns := range inputReplacements() {
		number, _, _ := strings.Cut(columns, " ")
		rows := "(SELECT * FROM json_to_recordset($1::json) AS rows(" + columns + ") WHERE " + number + few + ")"
		words = append(words, "{"+name+"}", rows+" AS "+name, "{"+name+" once}", name+" AS MATERIALIZED "+rows)
	}
	// A lock of two integers cannot collide with the lock of the migrations, which has one integer.
	const poolLock = "(20060, hashtext("
	const foldLock = "(20062, 0)"
	return dialect{
		name:               migrations.Postgres,
		sqlTranslator:      newSQLTranslator(words, nil),
		forbidden:          forbiddenSettings(),
		lockShared:         `SELECT name FROM {names} WHERE pg_advisory_xact_lock_shared` + poolLock + `name)) IS NOT NULL`,
		tryShared:          `SELECT name FROM {names} WHERE pg_try_advisory_xact_lock_shared` + poolLock + `name))`,
		lockExclusive:      `SELECT pg_advisory_xact_lock` + poolLock + `$1))`,
		disableLockTimeout: `SELECT set_config('lock_timeout', '0', true)`,
		tryLockKey:         `SELECT pg_try_advisory_xact_lock(20062, hashtext($1::bigint || ' ' || $2))`,
		lockLateResults:    `SELECT pg_advisory_xact_lock(20063, hashtext($1))`,
		// lockGrants waits for claims in progress and blocks new claims, so advanceNumbers must run in the same transaction. A rollback does not
		// undo advanceNumbers, because the numbers of a sequence only increase.
		lockGrants: `LOCK TABLE grants IN SHARE ROW EXCLUSIVE MODE`,
		advanceNumbers: advanceNumbersStatements(`SELECT setval('grant_token', last_value + CAST($1 AS bigint)) FROM grant_token`,
			`SELECT setval('%[1]s_id_seq', last_value + CAST($1 AS bigint)) FROM %[1]s_id_seq`),
		tagIndexSQL:             `SELECT set_config('enable_bitmapscan', 'on', true)`,
		disableStatementTimeout: `SET LOCAL statement_timeout = 0`,
		addTasks:                `COPY tasks (batch, pool, device, priority, own_priority, payload, not_before, not_after, retry_at) FROM STDIN`,
		canChainWrites:          true,
		needsFlush:              true,
		brackets:                "{}",
		snapshotIsolation:       sql.LevelRepeatableRead,
		lockNews:                `SELECT pg_advisory_xact_lock(20062, 1)`,
		tryFold:                 `SELECT pg_try_advisory_xact_lock` + foldLock,
	}
}

// lookUpJoinReplacements returns the words such as {device of w}, each followed by its join. OFFSET 0 makes Postgres look up one row at a time.
func lookUpJoinReplacements() (wordsWithReplacements []string) {
	return []string{
		"{task w}", "CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = w.id OFFSET 0) AS t",
		"{attempt w}", "CROSS JOIN LATERAL (SELECT * FROM attempts WHERE token = w.token OFFSET 0) AS a",
		"{batch of t}", "CROSS JOIN LATERAL (SELECT * FROM batches WHERE id = t.batch OFFSET 0) AS b",
		"{batch of d}", "CROSS JOIN LATERAL (SELECT * FROM batches WHERE id = d.batch OFFSET 0) AS b",
		"{batch c of w}", "LEFT JOIN LATERAL (SELECT * FROM batches WHERE id = w.batch OFFSET 0) AS c ON TRUE",
		"{pool of c}", "LEFT JOIN LATERAL (SELECT * FROM pools WHERE name = c.pool OFFSET 0) AS p ON TRUE",
		"{grant of w}", "LEFT JOIN LATERAL (SELECT * FROM grants WHERE device = w.name OFFSET 0) AS g ON TRUE",
		"{task of g}", "LEFT JOIN LATERAL (SELECT * FROM tasks WHERE id = g.task OFFSET 0) AS t ON TRUE",
		"{device of w}", "LEFT JOIN LATERAL (SELECT * FROM devices WHERE id = w.name OFFSET 0) AS d ON TRUE",
		"{device of t}", "LEFT JOIN LATERAL (SELECT * FROM devices WHERE id = t.device OFFSET 0) AS d ON TRUE",
		"{grant of t}", "LEFT JOIN LATERAL (SELECT * FROM grants WHERE task = t.id OFFSET 0) AS g ON TRUE",
		"{attempt of e}", "CROSS JOIN LATERAL (SELECT * FROM attempts WHERE token = e.token OFFSET 0) AS a",
		"{batch of g}", "LEFT JOIN LATERAL (SELECT * FROM batches WHERE id = g.batch OFFSET 0) AS b ON TRUE",
	}
}

// sqliteReplacements returns the words in braces and the names of Postgres, each followed by its replacement for SQLite.
func sqliteReplacements() (wordsWithReplacements []string) {
	return []string{
		"least(", "min(", "greatest(", "max(", "::json", "",
		"{now}", "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
		"{ms}", "1",
		"{epoch}", "0",
		"{minute of at}", "(at / 60000)",
		"{this minute}", "(CAST(unixepoch('subsec') AS INTEGER) / 60)",
		"{since began}", "(at - began)",
		"{first word}", "substr(e.detail, 1, instr(e.detail || ' ', ' ') - 1)",
		"{pending of points}", "t.batch = points.batch AND t.state = 'pending' AND t.id >= points.at",
		"{pending of ids}", "t.batch = ids.id AND t.state = 'pending'",
		"{batch of t}", "JOIN batches b ON b.id = t.batch",
		"{batch of d}", "JOIN batches b ON b.id = d.batch",
		"{batch c of w}", "LEFT JOIN batches c ON c.id = w.batch",
		"{pool of c}", "LEFT JOIN pools p ON p.name = c.pool",
		"{grant of w}", "LEFT JOIN grants g ON g.device = w.name",
		"{task of g}", "LEFT JOIN tasks t ON t.id = g.task",
		"{attempt of e}", "CROSS JOIN attempts a ON a.token = e.token",
		"{device of w}", "LEFT JOIN devices d ON d.id = w.name",
		"{device of t}", "LEFT JOIN devices d ON d.id = t.device",
		"{grant of t}", "LEFT JOIN grants g ON g.task = t.id",
		"{batch of g}", "LEFT JOIN batches b ON b.id = g.batch",
		"{best (}", "LEFT JOIN tasks o ON o.id IN (",
		"{) o}", ")",
		"{task w}", "CROSS JOIN tasks t ON t.id = w.id",
		"{attempt w}", "CROSS JOIN attempts a ON a.token = w.token",
		"{columns of best}", "t.id",
		"{task of n}", "json_extract($2, '$[' || w.n || ']')",
		"{shown and held}", "9", // a constant, because a LIMIT in SQLite cannot refer to columns
		"{last event}", "coalesce(max(id), 0) FROM events", // SQLite has one writer, so ids are given in the order of commits
		"{new xid}", "0",
		"{oldest xid}", "0",
		"{next turn}", "(SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'token_changes')",
		"{keys of tags}", "json_each(looked.tags) AS k",
		"{keys of attributes}", "json_each(looked.attributes) AS k",
		"{tagged $1}", hasTagsSQL("$1"),
		"{tagged $3}", hasTagsSQL("$3"),
		"{unhex hash}", "unhex(hash)",
		"{given}", "grants",
		"{token}", "token", // the column, because a trigger has already set the token
		"{last token}", "(SELECT value FROM grant_token)",
	}
}

func sqliteDialect() dialect {
	words := sqliteReplacements()
	for name, columns := range inputReplacements() {
		words = append(words, "{"+name+"}", "(SELECT "+readJSONMembersSQL(columns)+" FROM json_each($1)) AS "+name)
	}
	words = append(words, "{ended}", "(SELECT "+endedColumns+" FROM (SELECT "+readJSONMembersSQL(inputReplacements()["endings"])+` FROM json_each($1)) AS endings
		JOIN grants g ON g.task = endings.task AND g.token = endings.token) AS ended`)
	return dialect{
		name:          migrations.SQLite,
		sqlTranslator: newSQLTranslator(words, regexp.MustCompile(`FOR (KEY )?(UPDATE|SHARE)( OF [a-z](, [a-z])*)?( SKIP LOCKED)?`)),
		advanceNumbers: advanceNumbersStatements(`UPDATE grant_token SET value = value + $1 RETURNING value`,
			`UPDATE sqlite_sequence SET seq = seq + $1 WHERE name = '%[1]s' RETURNING seq`),
		addTasks: `INSERT INTO tasks (batch, pool, device, priority, own_priority, payload, not_before, not_after, retry_at)
			VALUES ($1, $2, $3, $4, $5, $6, ` + textToTimeSQL("$7") + `, ` + textToTimeSQL("$8") + `, ` + textToTimeSQL("$9") + `)`,
		brackets: "[]",
	}
}

// formatNumberList returns numbers as one argument of a statement: an array of Postgres, or a JSON array for SQLite.
func (d dialect) formatNumberList(numbers []int64) string {
	text := []byte(d.brackets[:1])
	for i, n := range numbers {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	return string(append(text, d.brackets[1:]...))
}

// textToTimeSQL returns the SQL that converts the text textExpr to a time.
func textToTimeSQL(textExpr string) string {
	return `CAST(round(unixepoch(` + textExpr + `, 'subsec') * 1000) AS INTEGER)`
}

// hasTagsSQL returns the SQL for the word {tagged} in SQLite, which has no operator for it. tagsExpr is the SQL for the JSON object of tags.
func hasTagsSQL(tagsExpr string) string {
	return `NOT EXISTS (SELECT 1 FROM json_each(` + tagsExpr + `) AS wanted WHERE NOT EXISTS (
		SELECT 1 FROM json_each(d.tags) AS has WHERE has.key = wanted.key AND has.value = wanted.value))`
}

// advanceNumbersStatements returns the statements that increase the last fencing token (tokenSQL) and the last id of each table (tableSQL, in
// which %[1]s stands for the table). A client may know a number that a restored ledger has lost, so no such number may be given again.
func advanceNumbersStatements(tokenSQL, tableSQL string) []string {
	all := []string{tokenSQL}
	for _, table := range []string{"tasks", "batches", "events", "tokens", "news"} {
		all = append(all, fmt.Sprintf(tableSQL, table))
	}
	return all
}

// readJSONMembersSQL returns the SQL that reads columnDefinitions, such as "n bigint, name text", from a JSON list in SQLite.
func readJSONMembersSQL(columnDefinitions string) string {
	var list []string
	for column := range strings.SplitSeq(columnDefinitions, ",") {
		name := strings.Fields(column)[0]
		list = append(list, fmt.Sprintf("value->>'$.%s' AS %s", name, name))
	}
	return strings.Join(list, ", ")
}

// isConflict reports whether the server rolled the transaction back because of a conflict with another transaction.
func isConflict(err error) bool {
	var e *pq.Error
	if !errors.As(err, &e) {
		return false
	}
	return slices.Contains([]pqerror.Code{pqerror.TRDeadlockDetected, pqerror.TRSerializationFailure}, e.Code)
}

func isUniqueViolation(err error) bool {
	if e := (*pq.Error)(nil); errors.As(err, &e) {
		return e.Code == pqerror.UniqueViolation
	}
	e := (*sqlite.Error)(nil)
	return errors.As(err, &e) && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// isCommitFailure reports whether the server returned an error for the COMMIT. A FATAL error does not count, because a server process that is
// terminated may send it after the commit.
func isCommitFailure(err error) bool {
	var e *pq.Error
	return errors.As(err, &e) && e.Severity == "ERROR" || sqliteResultCode(err) == sqlite3.SQLITE_FULL
}

// sqlTranslator turns SQL texts into statements of one database. It caches the statements, because a translation takes longer than a lookup in
// the cache.
type sqlTranslator struct {
	words   *strings.Replacer
	omitted *regexp.Regexp // clauses that the database does not know; nil means none

	mu    sync.RWMutex
	texts map[string]string // key: text with words in braces; value: translated text
}

// newSQLTranslator returns a translator for words, each followed by its replacement.
func newSQLTranslator(words []string, omitted *regexp.Regexp) *sqlTranslator {
	return &sqlTranslator{words: strings.NewReplacer(words...), omitted: omitted, texts: map[string]string{}}
}

// translate returns query as a statement of the database, with its words replaced and without the omitted clauses.
func (w *sqlTranslator) translate(query string) (statement string) {
	w.mu.RLock()
	text, known := w.texts[query]
	w.mu.RUnlock()
	if known {
		return text
	}
	text = w.words.Replace(query)
	if w.omitted != nil {
		text = w.omitted.ReplaceAllString(text, "")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts[query] = text
	return text
}

package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

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
//	{skip t}     FOR UPDATE OF t SKIP LOCKED
//	{token}      the next fencing token, for a grant that holds its unique keys
//	{last token} the last one given, 0 before the first
//	{given}      the grants, as UPDATE has just given them their tokens
//	{ids}, {claims}, ... the rows of the JSON array $1, see inputs
type dialect struct {
	name       string
	words      *strings.Replacer
	durability []string // settings that must not be off
	lockShared string   // takes the locks of the pools of {claims}; empty: not needed
	lockAlone  string   // takes the lock of the pool $1 against all others
	bulk       string   // lifts the statement timeout of one transaction
	addTasks   string   // prepared once per batch, run once per task
	chains     bool     // WITH takes changes: several run as one statement
	flush      bool     // addTasks needs a last run without arguments
}

// inputs are the batches that statements take as one JSON array, in $1. The
// names of the columns are those of the JSON members.
func inputs() map[string]string {
	return map[string]string{
		"ids":      "id bigint",
		"names":    "n bigint, name text",
		"claims":   "n bigint, task bigint, device text, pool text, slot bigint, lease text",
		"renewals": "n bigint, task bigint, token bigint, device text",
		"seen":     "device text, at_ms bigint",
		"endings": "task bigint, token bigint, cause text, output text, error text, state text, counted bigint," +
			" returned bigint, delay_ms bigint, event text, actor text, detail text",
	}
}

func postgres() dialect {
	words := []string{
		"{now}", "clock_timestamp()",
		"{ms}", "interval '1 millisecond'",
		"{epoch}", "timestamptz 'epoch'",
		"{least}", "least",
		"{json}", "::json",
		"{lock}", "FOR UPDATE",
		"{lock t}", "FOR UPDATE OF t",
		"{skip t}", "FOR UPDATE OF t SKIP LOCKED",
		"{given}", "given",
		"{token}", "nextval('grant_token')",
		"{last token}", "(SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM grant_token)",
	}
	// The limits change nothing but the plan: without them Postgres expects a
	// hundred rows of any array, and reads whole tables to join them. With each
	// limit that it does not know it expects a tenth: here, one row.
	const limit = " LIMIT json_array_length($1::json)"
	for name, columns := range inputs() {
		words = append(words, "{"+name+"}",
			"(SELECT * FROM (SELECT * FROM json_to_recordset($1::json) AS rows("+columns+")"+limit+") AS given"+limit+") AS "+name)
	}
	// Two integers: a space of their own, apart from the migrations' lock.
	const poolLock = "(20060, hashtext("
	return dialect{
		name:       migrations.Postgres,
		words:      strings.NewReplacer(words...),
		durability: []string{"fsync", "synchronous_commit"},
		lockShared: `SELECT pg_advisory_xact_lock_shared` + poolLock + `pool))
			FROM (SELECT DISTINCT pool COLLATE "C" AS pool FROM {claims} ORDER BY 1 OFFSET 0) AS pools`,
		lockAlone: `SELECT pg_advisory_xact_lock` + poolLock + `$1))`,
		bulk:      `SET LOCAL statement_timeout = 0`,
		addTasks:  `COPY tasks (batch, pool, device, priority, payload) FROM STDIN`,
		chains:    true,
		flush:     true,
	}
}

func sqliteDialect() dialect {
	words := []string{
		"{now}", "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)",
		"{ms}", "1",
		"{epoch}", "0",
		"{least}", "min",
		"{json}", "",
		"{lock}", "",
		"{lock t}", "",
		"{skip t}", "",
		"{given}", "grants",
		"{token}", "token", // given by a trigger
		"{last token}", "(SELECT value FROM grant_token)",
	}
	for name, columns := range inputs() {
		words = append(words, "{"+name+"}", "(SELECT "+members(columns)+" FROM json_each($1)) AS "+name)
	}
	return dialect{
		name:     migrations.SQLite,
		words:    strings.NewReplacer(words...),
		addTasks: `INSERT INTO tasks (batch, pool, device, priority, payload) VALUES ($1, $2, $3, $4, $5)`,
	}
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

func (d dialect) text(query string) string { return d.words.Replace(query) }

// retryable: the server undid the transaction for the sake of another one.
func retryable(err error) bool {
	var e *pq.Error
	if !errors.As(err, &e) {
		return false
	}
	return slices.Contains([]pqerror.Code{pqerror.TRDeadlockDetected, pqerror.TRSerializationFailure}, e.Code)
}

// refused: the server itself said that the COMMIT failed. A FATAL error is no
// such answer: a backend told to end may say so after it committed.
func refused(err error) bool {
	var e *pq.Error
	return errors.As(err, &e) && e.Severity == "ERROR"
}

package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// database is a connection pool or a transaction, with or without prepared statements.
type database interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// session runs SQL texts inside or outside of a transaction.
type session struct {
	database
	dialect
	recordsAccountChanges bool
	pendingNews           *pendingNews // the news of the transaction; nil outside of a transaction
}

// exec runs a statement and returns the number of rows that it changed.
func (s session) exec(ctx context.Context, query string, args ...any) (changedRows int64, err error) {
	result, err := s.ExecContext(ctx, s.translate(query), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// scanRow reads the first row of query into dest, which has a pointer for each column. It returns ErrNotFound if there is no row.
func (s session) scanRow(ctx context.Context, dest []any, query string, args ...any) error {
	rows, err := s.QueryContext(ctx, s.translate(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return cmp.Or(rows.Err(), ErrNotFound)
	}
	if err := rows.Scan(scannersFor(dest)...); err != nil {
		return err
	}
	return rows.Close()
}

// collect runs query and returns all rows. scanDest returns a pointer for each column of a row.
func collect[Row any](ctx context.Context, tx session, scanDest func(*Row) []any, query string, args ...any) ([]Row, error) {
	rows, err := tx.QueryContext(ctx, tx.translate(query), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []Row
	for rows.Next() {
		var one Row
		if err := rows.Scan(scannersFor(scanDest(&one))...); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// forEach runs query and calls handle with each row until handle returns false. scanDest is called once and returns a pointer for each
// column.
func forEach[Row any](ctx context.Context, tx session, scanDest func(*Row) []any, handle func(Row) (goOn bool), query string, args ...any) error {
	rows, err := tx.QueryContext(ctx, tx.translate(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var one Row
	columns := scannersFor(scanDest(&one))
	for rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		if !handle(one) {
			return rows.Close()
		}
	}
	return rows.Err()
}

// queryOne runs query and returns its first row, or ErrNotFound. scanDest returns a pointer for each column.
func queryOne[Row any](ctx context.Context, tx session, scanDest func(*Row) []any, query string, args ...any) (Row, error) {
	var t Row
	err := tx.scanRow(ctx, scanDest(&t), query, args...)
	return t, err
}

func (s session) readClock(ctx context.Context) (time.Time, error) {
	return queryOne(ctx, s, singleColumn[time.Time], `SELECT {now}`)
}

// singleColumn is the scanDest of collect and queryOne for a query with one column.
func singleColumn[Column any](target *Column) (scanDest []any) { return []any{target} }

// rowsToJSONArray returns rows as a JSON array. Words in SQL such as {ids} read such an array (see dialect).
func rowsToJSONArray[Row any](rows []Row) string {
	// json.Marshal cannot fail for plain structs and numbers.
	b, _ := json.Marshal(rows)
	return string(b)
}

// idsToJSONArray returns ids as the JSON array that a statement with the placeholder {ids} (see dialect) reads.
func idsToJSONArray(ids ...int64) string {
	rows := make([]struct {
		ID int64 `json:"id"`
	}, len(ids))
	for i, id := range ids {
		rows[i].ID = id
	}
	return rowsToJSONArray(rows)
}

// namesToJSONArray returns names as the JSON array that a statement with the placeholder {names} (see dialect) reads.
func namesToJSONArray(names []string) string {
	rows := make([]struct {
		N    int    `json:"n"`
		Name string `json:"name"`
	}, len(names))
	for i, name := range names {
		rows[i].N, rows[i].Name = i, name
	}
	return rowsToJSONArray(rows)
}

// step is a statement that transforms the rows of a JSON array, which is a parameter.
type step struct{ name, query string }

// runSteps runs steps on rowsJSON, a JSON array. The steps read the array through the word {inputPlaceholder} (see dialect). On Postgres, all
// steps run as one statement, which saves round trips. Then a step does not read the changes of earlier steps, so it must not depend on them.
func (s session) runSteps(ctx context.Context, inputPlaceholder, rowsJSON string, steps []step) error {
	if s.canChainWrites {
		return s.execChained(ctx, inputPlaceholder, rowsJSON, steps)
	}
	return s.execEach(ctx, rowsJSON, steps)
}

func (s session) execEach(ctx context.Context, rowsJSON string, steps []step) error {
	for _, step := range steps {
		if _, err := s.exec(ctx, step.query, rowsJSON); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// execChained runs steps as one statement on rowsJSON.
func (s session) execChained(ctx context.Context, inputPlaceholder, rowsJSON string, steps []step) error {
	with := make([]string, len(steps))
	for i, step := range steps {
		with[i] = fmt.Sprintf("step%d AS (%s)", i, step.query)
	}
	_, err := s.exec(ctx, withInputReadOnceSQL(inputPlaceholder, strings.Join(with, ", ")+" SELECT"), rowsJSON)
	return err
}

// withInputReadOnceSQL returns the statement "WITH " + ctesSQL, in which the JSON array of the word {inputPlaceholder} is read only once.
func withInputReadOnceSQL(inputPlaceholder, ctesSQL string) string {
	return "WITH {" + inputPlaceholder + " once}, " + strings.ReplaceAll(ctesSQL, "{"+inputPlaceholder+"}", inputPlaceholder)
}

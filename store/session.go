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

// Each type is a session with the statements of one part of the ledger, such as pools or grants.
type (
	poolsIn       struct{ session }
	batchesIn     struct{ session }
	tasksIn       struct{ session }
	grantsIn      struct{ session }
	leasesIn      struct{ session }
	devicesIn     struct{ session }
	profilesIn    struct{ session }
	credentialsIn struct{ session }
)

// pools returns the session with the statements on pools, and so on.
func (s session) pools() poolsIn             { return poolsIn{s} }
func (s session) batches() batchesIn         { return batchesIn{s} }
func (s session) tasks() tasksIn             { return tasksIn{s} }
func (s session) grants() grantsIn           { return grantsIn{s} }
func (s session) leases() leasesIn           { return leasesIn{s} }
func (s session) devices() devicesIn         { return devicesIn{s} }
func (s session) profiles() profilesIn       { return profilesIn{s} }
func (s session) credentials() credentialsIn { return credentialsIn{s} }

// exec runs a statement and returns the number of rows that it changed.
func (s session) exec(ctx context.Context, query string, args ...any) (int64, error) {
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
	if err := rows.Scan(destinations(dest)...); err != nil {
		return err
	}
	return rows.Close()
}

// collect runs query and returns all rows. dest returns a pointer for each column of a row.
func collect[T any](ctx context.Context, s session, dest func(*T) []any, query string, args ...any) ([]T, error) {
	rows, err := s.QueryContext(ctx, s.translate(query), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var one T
		if err := rows.Scan(destinations(dest(&one))...); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// forEach runs query and calls handle with each row until it returns false. dest, called once, returns a pointer for each column.
func forEach[T any](ctx context.Context, s session, dest func(*T) []any, handle func(T) bool, query string, args ...any) error {
	rows, err := s.QueryContext(ctx, s.translate(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var one T
	columns := destinations(dest(&one))
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

// queryOne runs query and returns its first row, or ErrNotFound. dest returns a pointer for each column.
func queryOne[T any](ctx context.Context, s session, dest func(*T) []any, query string, args ...any) (T, error) {
	var t T
	err := s.scanRow(ctx, dest(&t), query, args...)
	return t, err
}

// readClock reads the time of the database's clock.
func (s session) readClock(ctx context.Context) (time.Time, error) {
	return queryOne(ctx, s, singleColumn[time.Time], `SELECT {now}`)
}

// singleColumn is the dest of collect and queryOne for a query with one column.
func singleColumn[T any](target *T) []any { return []any{target} }

// toJSONInput returns rows as the JSON array that words such as {ids} read (see dialect).
func toJSONInput[T any](rows []T) string {
	// json.Marshal cannot fail for plain structs and numbers.
	b, _ := json.Marshal(rows)
	return string(b)
}

type idRow struct {
	ID int64 `json:"id"`
}

// idsInput returns ids as the JSON array of the word {ids} (see dialect).
func idsInput(ids ...int64) string {
	rows := make([]idRow, len(ids))
	for i, id := range ids {
		rows[i].ID = id
	}
	return toJSONInput(rows)
}

type nameRow struct {
	N    int    `json:"n"`
	Name string `json:"name"`
}

// namesInput returns names as the JSON array of the word {names} (see dialect).
func namesInput(names []string) string {
	rows := make([]nameRow, len(names))
	for i, name := range names {
		rows[i] = nameRow{N: i, Name: name}
	}
	return toJSONInput(rows)
}

// step is a statement that changes the rows of an input, a JSON array.
type step struct{ name, query string }

// runSteps runs steps on rows, the JSON array that they read by the word input (see dialect). If the database allows it, they run as one
// statement, which saves round trips; then a step does not see the changes of earlier ones, so none may depend on them.
func (s session) runSteps(ctx context.Context, input, rows string, steps []step) error {
	if s.canChainWrites {
		return s.execChained(ctx, input, rows, steps)
	}
	return s.execEach(ctx, rows, steps)
}

func (s session) execEach(ctx context.Context, rows string, steps []step) error {
	for _, step := range steps {
		if _, err := s.exec(ctx, step.query, rows); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// execChained runs steps as one statement on rows.
func (s session) execChained(ctx context.Context, input, rows string, steps []step) error {
	with := make([]string, len(steps))
	for i, step := range steps {
		with[i] = fmt.Sprintf("step%d AS (%s)", i, step.query)
	}
	_, err := s.exec(ctx, chainCTEs(input, strings.Join(with, ", ")+" SELECT"), rows)
	return err
}

// chainCTEs returns a statement that begins with the CTEs in text and reads its input only once.
func chainCTEs(input, text string) string {
	return "WITH {" + input + " once}, " + strings.ReplaceAll(text, "{"+input+"}", input)
}

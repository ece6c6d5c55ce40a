package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/windows"
)

// Window is a recurring period in which tasks may start.
type Window = windows.Window

// Opening is the present or the next period in which a batch or a pool is open. After this period has ended, it stays stored until the next
// one is computed.
type Opening struct {
	From, Until time.Time // a zero Until means always open
}

// windowOpen returns the SQL condition that a batch or pool is open now and stays open for longer than neededMS. alias is the name of the
// batch or pool in the statement. neededMS is an SQL expression in milliseconds.
func windowOpen(alias, neededMS string) string {
	return `(` + alias + `.closes_at IS NULL OR (` + alias + `.opens_at <= {now} AND ` + alias + `.closes_at > {now} + ` + neededMS + ` * {ms}))`
}

// neededTime returns the SQL expression for the time in ms for which a window must stay open so that a task of batch b may start. leaseExpr
// is the SQL expression for the length of the task's lease.
func neededTime(leaseExpr string) string {
	return `CASE WHEN b.finish_inside THEN ` + leaseExpr + ` ELSE 0 END`
}

// openingColumns holds the arguments for the columns in which the windows of a batch or pool and their opening are stored.
type openingColumns struct {
	windows, from, until, refreshDue any // windows is JSON, the times are milliseconds since 1970; all are nil without windows
}

// computeOpening computes the present or next opening of the windows in schedule, by the database's clock. The windows must be valid.
func (s poolsIn) computeOpening(ctx context.Context, schedule []Window) (openingColumns, error) {
	if len(schedule) == 0 {
		return openingColumns{}, nil
	}
	now, err := s.readClock(ctx)
	if err != nil {
		return openingColumns{}, err
	}
	o, err := openingAt(schedule, now)
	if err != nil {
		return openingColumns{}, err
	}
	text, err := json.Marshal(schedule)
	if err != nil {
		return openingColumns{}, err
	}
	return openingColumns{windows: string(text), from: o.From.UnixMilli(), until: o.Until.UnixMilli(), refreshDue: o.RecomputeAt.UnixMilli()}, nil
}

// checkFits returns ErrNeverStarts if batch.FinishInside is true and the windows are never open for long enough, so that no task of the
// batch could ever start. It accepts an unknown pool, because a later statement refuses it.
func (s poolsIn) checkFits(ctx context.Context, batch Batch) error {
	if !batch.FinishInside {
		return nil
	}
	pool, err := s.poolByName(ctx, batch.Pool)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	sets := make([]windows.Set, 2)
	for i, list := range [][]Window{batch.Windows, pool.Windows} {
		if sets[i], err = windows.Parse(list); err != nil {
			return fmt.Errorf("evaluating windows: %w", err)
		}
	}
	if lease := cmp.Or(batch.Lease, pool.Lease); !windows.Fits(lease, sets...) {
		return fmt.Errorf("%w of %s", ErrNeverStarts, lease)
	}
	return nil
}

// openingAt returns the present or next opening of the windows in schedule at the time now.
func openingAt(schedule []Window, now time.Time) (windows.Opening, error) {
	set, err := windows.Parse(schedule)
	if err != nil {
		return windows.Opening{}, fmt.Errorf("computing an opening: %w", err)
	}
	return set.Opening(now), nil
}

// openingRow is a new opening of a batch or a pool, as a statement reads it.
type openingRow struct {
	ID      int64  `json:"id"`
	Name    string `json:"name"`
	FromMS  int64  `json:"from_ms"`
	UntilMS int64  `json:"until_ms"`
	DueMS   int64  `json:"due_ms"`
}

// RefreshWindows computes the next openings (periods in which windows are open) of at most limit batches and at most limit pools, and
// returns the number of computed openings. An opening is due for this when it has ended, and a day after it was computed. After the end of
// an opening nothing starts until the next one is computed, so a late call only delays tasks. Replicas may call RefreshWindows
// concurrently.
func (s pools) RefreshWindows(ctx context.Context, limit int) (int, error) {
	anyDue, err := queryOne(ctx, s.readSession(), singleColumn[bool], `
		SELECT EXISTS (SELECT 1 FROM batches WHERE windows_due <= (SELECT {now})) OR EXISTS (SELECT 1 FROM pools WHERE windows_due <= (SELECT {now}))`)
	if err != nil || !anyDue {
		return 0, err
	}
	refreshed := 0
	err = s.write(ctx, func(tx session) error {
		refreshed = 0
		for _, target := range []struct{ table, id, name, key string }{
			{"batches", "t.id", "''", "t.id = openings.id"},
			{"pools", "0", "t.name", "t.name = openings.name"},
		} {
			n, err := tx.pools().refreshWindows(ctx, target.table, target.id+", "+target.name, target.key, limit)
			if err != nil {
				return err
			}
			refreshed += n
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("refreshing windows: %w", err)
	}
	return refreshed, nil
}

// refreshWindows computes the due openings of at most limit rows, and returns their number. table is pools or batches. columns are the
// columns to read from it, and keyColumn is the column that identifies a row.
func (s poolsIn) refreshWindows(ctx context.Context, table, columns, keyColumn string, limit int) (int, error) {
	type reading struct {
		openingRow
		windows []Window
		now     time.Time
	}
	list, err := collect(ctx, s.session, func(r *reading) []any { return []any{&r.ID, &r.Name, &r.windows, &r.now} },
		`SELECT `+columns+`, t.windows, {now} FROM `+table+` t WHERE t.windows_due <= (SELECT {now}) LIMIT $1 FOR UPDATE OF t SKIP LOCKED`, limit)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	rows := make([]openingRow, len(list))
	for i, r := range list {
		o, err := openingAt(r.windows, r.now)
		if err != nil {
			return 0, err
		}
		r.FromMS, r.UntilMS, r.DueMS = o.From.UnixMilli(), o.Until.UnixMilli(), o.RecomputeAt.UnixMilli()
		rows[i] = r.openingRow
	}
	_, err = s.exec(ctx, `
		UPDATE `+table+` AS t SET opens_at = {epoch} + openings.from_ms * {ms}, closes_at = {epoch} + openings.until_ms * {ms},
			windows_due = {epoch} + openings.due_ms * {ms}
		FROM {openings} WHERE `+keyColumn, toJSONInput(rows))
	return len(rows), err
}

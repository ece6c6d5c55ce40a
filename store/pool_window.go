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

// Opening is the present or the next period in which a batch or a pool is open. It stays stored until the next opening is computed.
type Opening struct {
	From, Until time.Time // a zero Until means always open
}

// windowOpenSQL returns the condition that the windows of a batch or pool are open now, and stay open for longer than neededMSExpr (SQL, in
// ms). alias is the SQL name of the row of the batch or pool.
func windowOpenSQL(alias, neededMSExpr string) string {
	return `(` + alias + `.closes_at IS NULL OR (` + alias + `.opens_at <= {now} AND ` + alias + `.closes_at > {now} + ` + neededMSExpr + ` * {ms}))`
}

// neededTimeSQL returns the SQL for the time in ms for which a window must stay open so that a task of batch b may start. leaseExpr is the
// SQL for the lease of the task in ms.
func neededTimeSQL(leaseExpr string) string {
	return `CASE WHEN b.finish_inside THEN ` + leaseExpr + ` ELSE 0 END`
}

// openingColumns holds the arguments for the columns of the windows and the opening of a batch or pool.
type openingColumns struct {
	windows, from, until, refreshDue any // windows is JSON, the times are milliseconds since 1970; all are nil without windows
}

// computeOpening returns the present or next opening of valid windows, by the database's clock.
func (s session) computeOpening(ctx context.Context, schedule []Window) (openingColumns, error) {
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

// checkWindowsFit returns ErrNeverStarts if batch.FinishInside is true and no opening is long enough for a task of the batch. If the pool
// is unknown, checkWindowsFit returns nil, because a later statement refuses the batch.
func (s session) checkWindowsFit(ctx context.Context, batch Batch) error {
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
	if lease := cmp.Or(batch.Lease, pool.Lease); !windows.HaveCommonOpening(lease, sets...) {
		return fmt.Errorf("%w of %s", ErrNeverStarts, lease)
	}
	return nil
}

func openingAt(schedule []Window, now time.Time) (windows.Opening, error) {
	set, err := windows.Parse(schedule)
	if err != nil {
		return windows.Opening{}, fmt.Errorf("computing an opening: %w", err)
	}
	return set.Opening(now), nil
}

// RefreshWindows computes the next openings of at most limit batches and at most limit pools, and returns their number. A new opening is due
// when the stored opening has ended or is a day old. Until the new opening is computed, nothing starts, so a late call only delays tasks.
// Replicas may call RefreshWindows concurrently.
func (s pools) RefreshWindows(ctx context.Context, limit int) (refreshed int, err error) {
	anyDue, err := queryOne(ctx, s.readSession(), singleColumn[bool], `
		SELECT EXISTS (SELECT 1 FROM batches WHERE windows_due <= (SELECT {now})) OR EXISTS (SELECT 1 FROM pools WHERE windows_due <= (SELECT {now}))`)
	if err != nil || !anyDue {
		return 0, err
	}
	err = s.write(ctx, func(tx session) error {
		refreshed = 0
		for _, target := range []struct{ table, id, name, key string }{
			{"batches", "t.id", "''", "t.id = openings.id"},
			{"pools", "0", "t.name", "t.name = openings.name"},
		} {
			n, err := tx.refreshWindows(ctx, target.table, target.id+", "+target.name, target.key, limit)
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

// refreshWindows computes the due openings of at most limit rows of table (pools or batches), and returns their number. keyColumns are the
// columns that identify a row, and rowCondition is the SQL condition that joins a row to its new opening.
func (s session) refreshWindows(ctx context.Context, table, keyColumns, rowCondition string, limit int) (refreshed int, err error) {
	type row struct {
		ID      int64  `json:"id"`
		Name    string `json:"name"`
		FromMS  int64  `json:"from_ms"`
		UntilMS int64  `json:"until_ms"`
		DueMS   int64  `json:"due_ms"`
	}
	type reading struct {
		row
		windows []Window
		now     time.Time
	}
	list, err := collect(ctx, s, func(r *reading) []any { return []any{&r.ID, &r.Name, &r.windows, &r.now} },
		`SELECT `+keyColumns+`, t.windows, {now} FROM `+table+` t WHERE t.windows_due <= (SELECT {now}) LIMIT $1 FOR UPDATE OF t SKIP LOCKED`, limit)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	rows := make([]row, len(list))
	for i, r := range list {
		o, err := openingAt(r.windows, r.now)
		if err != nil {
			return 0, err
		}
		r.FromMS, r.UntilMS, r.DueMS = o.From.UnixMilli(), o.Until.UnixMilli(), o.RecomputeAt.UnixMilli()
		rows[i] = r.row
	}
	_, err = s.exec(ctx, `
		UPDATE `+table+` AS t SET opens_at = {epoch} + openings.from_ms * {ms}, closes_at = {epoch} + openings.until_ms * {ms},
			windows_due = {epoch} + openings.due_ms * {ms}
		FROM {openings} WHERE `+rowCondition, rowsToJSONArray(rows))
	return len(rows), err
}

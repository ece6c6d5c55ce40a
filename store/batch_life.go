package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// whyCancelled is the cancel_why of a grant whose task was cancelled. The device receives it as the reason to stop.
const whyCancelled = "cancelled"

// PauseBatch stops new grants of a batch and returns the batch. Devices that hold a slot for it continue. A paused or cancelled batch is
// not changed. Error: ErrNotFound.
func (s batches) PauseBatch(ctx context.Context, actor string, id int64, reason string) (Batch, error) {
	return s.changeBatch(ctx, id, func(tx session, b Batch) error {
		if b.Paused || b.CancelledAt != nil {
			return nil
		}
		return tx.pauseBatch(ctx, actor, b, reason)
	})
}

func (s session) pauseBatch(ctx context.Context, actor string, batch Batch, reason string) error {
	if _, err := s.exec(ctx, `
		UPDATE batches SET paused = true, paused_by = $2, paused_at = {now}, pause_reason = $3 WHERE id = $1`, batch.ID, actor, reason); err != nil {
		return fmt.Errorf("pausing the batch: %w", err)
	}
	s.pendingNews.addPool(batch.Pool)
	return s.recordEvent(ctx, Event{Kind: "batch.paused", Actor: actor, Pool: batch.Pool, Batch: batch.ID, Detail: reason})
}

// ResumeBatch ends the pause of a batch and returns the batch. From then on its abort rule ignores tasks that ended before. Error:
// ErrNotFound.
func (s batches) ResumeBatch(ctx context.Context, actor string, id int64) (Batch, error) {
	return s.changeBatch(ctx, id, func(tx session, b Batch) error {
		if !b.Paused {
			return nil
		}
		if _, err := tx.exec(ctx, `
			UPDATE batches AS b SET paused = false, paused_by = '', paused_at = NULL, pause_reason = '', (abort_ended, abort_failed) = (SELECT `+endedAndFailedSQL+`)
			WHERE id = $1`, id); err != nil {
			return fmt.Errorf("resuming the batch: %w", err)
		}
		tx.pendingNews.addPool(b.Pool)
		return tx.recordEvent(ctx, Event{Kind: "batch.resumed", Actor: actor, Pool: b.Pool, Batch: id})
	})
}

// CancelBatch cancels a batch. After the commit, no task of the batch is granted. Devices that hold a slot for the batch are asked to stop.
// EndCancelled ends the waiting tasks later. Error: ErrNotFound.
func (s batches) CancelBatch(ctx context.Context, actor string, id int64) (Batch, error) {
	return s.changeBatch(ctx, id, func(tx session, b Batch) error {
		if b.CancelledAt != nil {
			return nil
		}
		if _, err := tx.exec(ctx, `UPDATE batches SET cancelled_at = {now}, cancelling = true WHERE id = $1`, id); err != nil {
			return fmt.Errorf("cancelling the batch: %w", err)
		}
		tx.pendingNews.addPool(b.Pool)
		if err := tx.recordEvent(ctx, Event{Kind: "batch.cancelled", Actor: actor, Pool: b.Pool, Batch: id}); err != nil {
			return err
		}
		return tx.askGrantsOfBatchToStop(ctx, actor, b)
	})
}

// ChangeBatch calls change with the batch and stores Priority, Weight, Lane, NotAfter, MaxWait, Windows, Limits and MaxAttempts; other changes
// are ignored. change may run more than once. If it returns an error, nothing is changed. Errors: ErrNotFound, ErrNeverStarts.
func (s batches) ChangeBatch(ctx context.Context, actor string, id int64, change func(*Batch) error) (Batch, error) {
	return s.changeBatch(ctx, id, func(tx session, old Batch) error {
		b := old
		if err := change(&b); err != nil {
			return err
		}
		detail := describeChanges(old.auditSettings(), b.auditSettings())
		if detail == "" {
			return nil
		}
		if !slices.Equal(b.Windows, old.Windows) {
			if err := tx.checkWindowsFit(ctx, b); err != nil {
				return err
			}
		}
		o, err := tx.computeOpening(ctx, b.Windows)
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `
			UPDATE batches SET priority = $2, weight = $3, not_after = {epoch} + $4 * {ms}, max_attempts = $5,
				windows = $6::json, opens_at = {epoch} + $7 * {ms}, closes_at = {epoch} + $8 * {ms}, windows_due = {epoch} + $9 * {ms},
				limits = $10::json, lane = $11, max_wait_ms = CAST($12 AS bigint),
				wait_until = CASE WHEN CAST($12 AS bigint) > 0 THEN
					CASE WHEN not_before > created_at THEN not_before ELSE created_at END + CAST($12 AS bigint) * {ms} END
			WHERE id = $1`,
			id, b.Priority, b.Weight, millisOrNull(b.NotAfter), b.MaxAttempts, o.windows, o.from, o.until, o.refreshDue, jsonTextOrNull(b.Limits), b.Lane, b.MaxWait.Milliseconds()); err != nil {
			return fmt.Errorf("writing the batch: %w", err)
		}
		tx.pendingNews.addPool(b.Pool)
		if timeAuditText(b.NotAfter) != timeAuditText(old.NotAfter) || b.MaxWait != old.MaxWait {
			tx.pendingNews.addBatch(id) // tasks that had expired but were not ended yet may start again
		}
		return tx.recordEvent(ctx, Event{Kind: "batch.changed", Actor: actor, Pool: b.Pool, Batch: id, Detail: detail})
	})
}

// auditSettings returns the fields that an operator may change, in the form of the audit log.
func (b Batch) auditSettings() settings {
	return settings{
		"priority", strconv.Itoa(b.Priority), "weight", strconv.Itoa(b.Weight), "lane", string(b.Lane), "not_after", timeAuditText(b.NotAfter),
		"max_wait", b.MaxWait.String(), "windows", fmt.Sprint(b.Windows), "limits", policiesAuditText(b.Limits), "max_attempts", strconv.Itoa(b.MaxAttempts),
	}
}

func policiesAuditText(policies json.RawMessage) string {
	if policies == nil {
		return "none"
	}
	return string(policies)
}

// timeAuditText returns moment as it is written to the audit log, or "none" if moment is nil.
func timeAuditText(moment *time.Time) string {
	if moment == nil {
		return "none"
	}
	return moment.UTC().Format(time.RFC3339Nano)
}

// changeBatch takes the exclusive lock of the pool, locks the batch, runs change and returns the changed batch. The lock of the pool waits
// for every claim that read the old batch, so these claims have ended before change runs.
func (s batches) changeBatch(ctx context.Context, id int64, change func(tx session, b Batch) error) (Batch, error) {
	err := s.write(ctx, func(tx session) error {
		pool, err := queryOne(ctx, tx, singleColumn[string], `SELECT pool FROM batches WHERE id = $1`, id) // the pool of a batch never changes
		if err != nil {
			return err
		}
		if err := tx.lockNameExclusively(ctx, pool); err != nil {
			return err
		}
		b, err := queryOne(ctx, tx, batchScanDest, `SELECT `+batchColumns+` FROM batches b WHERE b.id = $1 FOR UPDATE`, id)
		if err != nil {
			return err
		}
		return change(tx, b)
	})
	if err != nil {
		return Batch{}, fmt.Errorf("changing batch %d: %w", id, err)
	}
	return s.Batch(ctx, id)
}

// askGrantsOfBatchToStop asks the devices that hold a slot for the cancelled batch to stop. It locks grants in the order of their tasks, as all
// code does. A device may refuse, so it must be asked only once: the caller's lock of the pool ensures that no claim of the batch follows.
func (s session) askGrantsOfBatchToStop(ctx context.Context, actor string, cancelled Batch) error {
	held, err := collect(ctx, s, singleColumn[int64], `
		SELECT g.task FROM grants g WHERE g.pool = $1 AND g.batch = $2 AND g.cancel_why <> '`+whyCancelled+`' ORDER BY g.task FOR UPDATE`, cancelled.Pool, cancelled.ID)
	if err != nil || len(held) == 0 {
		return err
	}
	return s.askTasksToStop(ctx, actor, whyCancelled, "", held)
}

// askTasksToStop asks the devices of the running tasks taskIDs to stop, stores cancelReason in each grant, and records an event for each task.
// The grants must be locked.
func (s session) askTasksToStop(ctx context.Context, actor, cancelReason, eventDetail string, taskIDs []int64) error {
	in := idsToJSONArray(taskIDs...)
	if _, err := s.exec(ctx, `UPDATE grants SET cancel_why = $2 WHERE task IN (SELECT id FROM {ids})`, in, cancelReason); err != nil {
		return fmt.Errorf("asking devices to stop: %w", err)
	}
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
		SELECT {now}, 'task.cancel_asked', $2, $3, pool, batch, task, device, token, $4 FROM grants WHERE task IN (SELECT id FROM {ids})`, in, actor, string(kindOfActor(actor)), eventDetail)
	return err
}

// EndCancelled ends at most limit waiting tasks of cancelled batches and returns their number. Replicas may call it concurrently.
func (s batches) EndCancelled(ctx context.Context, limit int) (endedTasks int, err error) {
	waiting, err := collect(ctx, s.readSession(), singleColumn[int64], `SELECT id FROM batches WHERE cancelling LIMIT 1`)
	if err != nil || len(waiting) == 0 {
		return 0, err
	}
	ended := 0
	err = s.write(ctx, func(tx session) (err error) {
		ended, err = tx.endWaitingTasks(ctx, waitingEndRule{fromSQL: `FROM batches b JOIN tasks t ON t.batch = b.id WHERE b.cancelling`, reason: `''`, state: Cancelled, actor: Canceller}, limit)
		if err != nil || ended == limit {
			return err
		}
		// The table tasks stores a granted task as pending. So the column cancelling of its batch stays true until the grant has ended.
		_, err = tx.exec(ctx, `
			UPDATE batches SET cancelling = false
			WHERE cancelling AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.batch = batches.id AND t.state = 'pending')`)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ending cancelled tasks: %w", err)
	}
	return ended, nil
}

// Canceller is the actor in the events of tasks that EndCancelled ends. The event batch.cancelled names the operator.
const Canceller = "canceller"

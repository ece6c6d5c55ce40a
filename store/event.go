package store

import "context"

// events are the activity and audit log.
type events struct{ *connection }

// EventFilter selects events; a zero field selects all.
type EventFilter struct {
	After  int64 // ids above, ascending, unless Newest
	Before int64 // ids below; 0 = no bound
	Newest bool  // descending ids
	Kind   string
	Actor  string
	Pool   string
	Batch  int64
	Task   int64
	Device string
	Limit  int // default 100, at most 1000
}

// where adds the conditions. Those of the partial indexes are said once more:
// SQLite does not conclude them.
func (f EventFilter) where(q *query) {
	q.where("id > %s", f.After)
	whereSet(q, "id < %s", f.Before)
	whereSet(q, "kind = %s", f.Kind)
	whereSet(q, "actor = %s", f.Actor)
	whereSet(q, "pool <> '' AND pool = %s", f.Pool)
	whereSet(q, "batch <> 0 AND batch = %s", f.Batch)
	whereSet(q, "task <> 0 AND task = %s", f.Task)
	whereSet(q, "device <> '' AND device = %s", f.Device)
}

// Events returns the events that match, in the order of their ids. Ids are
// given before commit: one that was committed late may appear below a higher
// one that was read before. MarkEvents tells when that is over.
func (s events) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	q := query{text: `SELECT id, at, kind, actor, pool, batch, task, device, token, detail FROM events`}
	f.where(&q)
	order := " ORDER BY id"
	if f.Newest {
		order += " DESC"
	}
	text, args := q.end(order, f.Limit)
	return collect(ctx, s.planned(), func(e *Event) []any {
		return []any{&e.ID, instant{&e.At}, &e.Kind, &e.Actor, &e.Pool, &e.Batch, &e.Task, &e.Device, &e.Token, &e.Detail}
	}, text, args...)
}

// record writes an event into the transaction that it tells of.
func (s session) record(ctx context.Context, e Event) error {
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, pool, batch, task, device, token, detail)
		VALUES ({now}, $1, $2, $3, $4, $5, $6, $7, $8)`,
		e.Kind, e.Actor, e.Pool, e.Batch, e.Task, e.Device, e.Token, e.Detail)
	return err
}

// RecordRefusal writes an event of somebody who was refused: of its kind there is
// nothing else that it tells of.
func (s events) RecordRefusal(ctx context.Context, e Event) error {
	e.Kind = "access.refused"
	return s.write(ctx, func(tx session) error { return tx.record(ctx, e) })
}

// EventMark is a position in the order of the events, and what has to end before
// that order stands still up to there.
type EventMark struct {
	Last int64 // the highest id given so far
	xids int64 // of transactions from here on: all that gave an id up to Last are below
}

// MarkEvents marks the position up to which ids have been given. When that is no
// further than sent, up to which all was settled before (-1: nothing was), it
// costs no transaction id.
func (s events) MarkEvents(ctx context.Context, sent int64) (EventMark, error) {
	var m EventMark
	// Two statements, in this order: whoever gave an id that the first one
	// reads had begun before the second one.
	if err := s.read().row(ctx, `SELECT {last event}`, &m.Last); err != nil || m.Last == sent {
		return m, err
	}
	err := s.read().row(ctx, `SELECT {new xid}`, &m.xids)
	return m, err
}

// EventsSettled says whether all events up to the mark are there to be read:
// everything that could still commit one of them has ended.
func (s events) EventsSettled(ctx context.Context, m EventMark) (bool, error) {
	return one(ctx, s.read(), only[bool], `SELECT {oldest xid} >= $1`, m.xids)
}

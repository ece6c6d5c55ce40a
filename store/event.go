package store

import "context"

// events are the activity and audit log.
type events struct{ *connection }

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

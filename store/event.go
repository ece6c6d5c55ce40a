package store

import "context"

// events is the part of the ledger that holds the activity and audit log.
type events struct{ *connection }

// recordEvent writes an event in the transaction of the change that it describes.
func (s session) recordEvent(ctx context.Context, e Event) error {
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, pool, batch, task, device, token, detail)
		VALUES ({now}, $1, $2, $3, $4, $5, $6, $7, $8)`,
		e.Kind, e.Actor, e.Pool, e.Batch, e.Task, e.Device, e.Token, e.Detail)
	return err
}

// RecordRefusal writes an event about a request that was refused. It needs a transaction of its own because a refused request changes
// nothing else.
func (s events) RecordRefusal(ctx context.Context, e Event) error {
	e.Kind = "access.refused"
	return s.write(ctx, func(tx session) error { return tx.recordEvent(ctx, e) })
}

// EventPosition is a position in the order of the events. The order up to the mark is final when all transactions that may have given an id up
// to it have ended.
type EventPosition struct {
	Last int64 // the highest event id given so far
	xids int64 // a transaction id; every transaction that gave an event id up to Last has a lower one
}

// ReadEventPosition returns a mark for the highest event id given so far. If that id is equal to sent, the id up to which all events were read as
// complete, it uses up no transaction id. Pass -1 if no event was read yet.
func (s events) ReadEventPosition(ctx context.Context, sent int64) (EventPosition, error) {
	var m EventPosition
	// The order of the two statements matters: a transaction that gave an id which the first statement reads has begun before the second
	// statement.
	if err := s.readSession().scanRow(ctx, `SELECT {last event}`, &m.Last); err != nil || m.Last == sent {
		return m, err
	}
	err := s.readSession().scanRow(ctx, `SELECT {new xid}`, &m.xids)
	return m, err
}

// EventsComplete reports whether all events up to the mark can be read: every transaction that could still commit one of them has ended.
func (s events) EventsComplete(ctx context.Context, m EventPosition) (bool, error) {
	return queryOne(ctx, s.readSession(), singleColumn[bool], `SELECT {oldest xid} >= $1`, m.xids)
}

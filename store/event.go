package store

import "context"

// events is the part of the ledger that holds the activity and audit log. The type Event is in device.go. Each event is written where the
// change is made.
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

// EventPosition is a position in the order of the events. No event can appear any more with an id up to Last when all transactions that may
// have given such an id have ended.
type EventPosition struct {
	Last     int64 // the highest event id given so far
	xidBound int64 // one transaction id: every transaction that gave an event id up to Last has a lower one
}

// ReadEventPosition returns the position of the highest event id given so far. sent is the id up to which the caller knows that it has read
// all events, or -1 if it has read none. If the highest id equals sent, ReadEventPosition uses up no transaction id.
func (s events) ReadEventPosition(ctx context.Context, sent int64) (EventPosition, error) {
	var m EventPosition
	// The order of the two statements matters: a transaction that gave an id which the first statement reads has begun before the second
	// statement.
	if err := s.readSession().scanRow(ctx, `SELECT {last event}`, &m.Last); err != nil || m.Last == sent {
		return m, err
	}
	err := s.readSession().scanRow(ctx, `SELECT {new xid}`, &m.xidBound)
	return m, err
}

// EventsComplete reports whether all events up to m.Last can be read: every transaction that could still commit one of them has ended.
func (s events) EventsComplete(ctx context.Context, m EventPosition) (bool, error) {
	return queryOne(ctx, s.readSession(), singleColumn[bool], `SELECT {oldest xid} >= $1`, m.xidBound)
}

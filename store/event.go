package store

import "context"

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

// Events returns the events that match, in the order of their ids. Ids are
// given before commit: one that was committed late may appear below a higher
// one that was read before.
func (s *Store) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	q := query{text: `SELECT id, at, kind, actor, pool, batch, task, device, token, detail FROM events`}
	q.where("id > %s", f.After)
	whereSet(&q, "id < %s", f.Before)
	whereSet(&q, "kind = %s", f.Kind)
	whereSet(&q, "actor = %s", f.Actor)
	whereSet(&q, "pool = %s", f.Pool)
	whereSet(&q, "batch = %s", f.Batch)
	whereSet(&q, "task = %s", f.Task)
	whereSet(&q, "device = %s", f.Device)
	order := " ORDER BY id"
	if f.Newest {
		order += " DESC"
	}
	text, args := q.end(order, f.Limit)
	return collect(ctx, s.read(), func(e *Event) []any {
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

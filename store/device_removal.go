package store

import "context"

// Removal is what became of the open tasks of a device that was deleted.
type Removal struct {
	Cancelled int // waiting tasks, cancelled at once
	Stopping  int // asked to stop: each keeps its slot until its result or the end of its lease
}

// DeleteDevice forgets a device and its credentials. Its open tasks are
// cancelled with it; without cancel they are ErrOpenTasks. A grant in force
// stays in force. Tasks, attempts and events are kept. ErrNotFound.
func (s devices) DeleteDevice(ctx context.Context, actor, id string, cancel bool) (Removal, error) {
	var removed Removal
	err := s.write(ctx, func(tx session) (err error) {
		removed, err = tx.devices().delete(ctx, actor, id, cancel)
		return err
	})
	return removed, err
}

func (s devicesIn) delete(ctx context.Context, actor, id string, cancel bool) (Removal, error) {
	if _, err := one(ctx, s.session, only[string], `SELECT id FROM devices WHERE id = $1 {lock}`, id); err != nil {
		return Removal{}, err
	}
	removed, err := s.tasks().cancelAllOf(ctx, actor, id, cancel)
	if err != nil {
		return Removal{}, err
	}
	for _, query := range []string{
		`DELETE FROM tokens WHERE device = $1`,
		`INSERT INTO deleted_devices (id, deleted_at, blocked) SELECT id, {now}, blocked FROM devices WHERE id = $1`,
		`DELETE FROM devices WHERE id = $1`,
	} {
		if _, err := s.exec(ctx, query, id); err != nil {
			return Removal{}, err
		}
	}
	if err := s.credentials().noteAccount(ctx, id, AccountDeleted); err != nil {
		return Removal{}, err
	}
	s.telling.devices(id)
	return removed, s.record(ctx, Event{Kind: "device.deleted", Actor: actor, Device: id})
}

func (s tasksIn) cancelAllOf(ctx context.Context, actor, device string, cancel bool) (Removal, error) {
	open, err := collect(ctx, s.session, only[int64], `SELECT t.id FROM tasks t WHERE t.device = $1 AND t.state = 'pending' ORDER BY t.id {lock t}`, device)
	if err != nil {
		return Removal{}, err
	}
	if len(open) > 0 && !cancel {
		return Removal{}, ErrOpenTasks
	}
	for _, task := range open {
		if err := s.cancel(ctx, actor, task); err != nil {
			return Removal{}, err
		}
	}
	// Those with a grant: the others are no longer open.
	stopping, err := one(ctx, s.session, only[int], `SELECT count(*) FROM grants WHERE device = $1`, device)
	return Removal{Cancelled: len(open) - stopping, Stopping: stopping}, err
}

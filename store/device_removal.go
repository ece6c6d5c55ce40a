package store

import "context"

// DeviceRemoval holds the numbers of open tasks that the deletion of a device ended or asked to stop.
type DeviceRemoval struct {
	Cancelled int // waiting tasks, which were cancelled at once
	Stopping  int // running tasks, asked to stop: each keeps its slot until its result arrives or its lease ends
}

// DeleteDevice deletes a device and its tokens. If cancelOpenTasks is true, the open tasks of the device are cancelled; if cancelOpenTasks
// is false and the device has open tasks, nothing is deleted and ErrOpenTasks is returned. A grant in force stays in force. Tasks,
// attempts and events are kept. DeleteDevice returns ErrNotFound if the device is not registered.
func (s devices) DeleteDevice(ctx context.Context, actor, id string, cancelOpenTasks bool) (DeviceRemoval, error) {
	var removed DeviceRemoval
	err := s.write(ctx, func(tx session) (err error) {
		removed, err = tx.devices().delete(ctx, actor, id, cancelOpenTasks)
		return err
	})
	return removed, err
}

// delete does the work of DeleteDevice in one transaction.
func (s devicesIn) delete(ctx context.Context, actor, id string, cancelOpenTasks bool) (DeviceRemoval, error) {
	if _, err := queryOne(ctx, s.session, singleColumn[string], `SELECT id FROM devices WHERE id = $1 {lock}`, id); err != nil {
		return DeviceRemoval{}, err
	}
	removed, err := s.tasks().cancelDeviceTasks(ctx, actor, id, cancelOpenTasks)
	if err != nil {
		return DeviceRemoval{}, err
	}
	for _, query := range []string{
		`DELETE FROM tokens WHERE device = $1`,
		`INSERT INTO deleted_devices (id, deleted_at, blocked) SELECT id, {now}, blocked FROM devices WHERE id = $1`,
		`DELETE FROM devices WHERE id = $1`,
	} {
		if _, err := s.exec(ctx, query, id); err != nil {
			return DeviceRemoval{}, err
		}
	}
	if err := s.credentials().recordAccountChange(ctx, id, AccountDeleted); err != nil {
		return DeviceRemoval{}, err
	}
	s.pendingNews.addDevices(id)
	return removed, s.recordEvent(ctx, Event{Kind: "device.deleted", Actor: actor, Device: id})
}

// cancelDeviceTasks cancels the open tasks of a device. If cancelOpenTasks is false and there are open tasks, it returns ErrOpenTasks.
func (s tasksIn) cancelDeviceTasks(ctx context.Context, actor, device string, cancelOpenTasks bool) (DeviceRemoval, error) {
	open, err := collect(ctx, s.session, singleColumn[int64], `SELECT t.id FROM tasks t WHERE t.device = $1 AND t.state = 'pending' ORDER BY t.id {lock t}`, device)
	if err != nil {
		return DeviceRemoval{}, err
	}
	if len(open) > 0 && !cancelOpenTasks {
		return DeviceRemoval{}, ErrOpenTasks
	}
	var done BulkResult
	if err := s.cancelAll(ctx, actor, open, &done); err != nil {
		return DeviceRemoval{}, err
	}
	stopping, err := queryOne(ctx, s.session, singleColumn[int], `SELECT count(*) FROM grants WHERE device = $1`, device)
	return DeviceRemoval{Cancelled: int(done.Tasks), Stopping: stopping}, err
}

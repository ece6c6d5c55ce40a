package store

import (
	"context"
	"slices"
)

// DeviceDeletion holds the options of DeleteDevices.
type DeviceDeletion struct {
	CancelOpenTasks bool // cancel the open tasks of the devices; without it, devices with open tasks are kept
	Refuse          bool // only operators can register the ids again, no fleet token and no session
	DryRun          bool // only count
}

// DeviceRemoval is the result of DeleteDevices: numbers of devices and of tasks.
type DeviceRemoval struct {
	Deleted   int // devices
	Kept      int // devices with open tasks, which were not deleted
	Cancelled int // waiting tasks, which were cancelled at once; 0 in a dry run
	Stopping  int // running tasks, asked to stop: each keeps its slot until its result arrives or its lease ends
}

// DeleteDevice deletes one device. Errors: ErrNotFound; ErrOpenTasks if the device was kept because of open tasks.
func (s devices) DeleteDevice(ctx context.Context, actor, id string, cancelOpenTasks bool) (DeviceRemoval, error) {
	removed, err := s.DeleteDevices(ctx, actor, []string{id}, DeviceDeletion{CancelOpenTasks: cancelOpenTasks})
	switch {
	case err != nil:
	case removed.Kept > 0:
		err = ErrOpenTasks
	case removed.Deleted == 0:
		err = ErrNotFound
	}
	return removed, err
}

// DeleteDevices deletes the registered devices in ids and their tokens in one transaction. actor must be an operator. Grants, tasks, attempts
// and events stay. Registry.DeleteDevices of package credentials also drops the cached tokens.
func (s devices) DeleteDevices(ctx context.Context, actor string, ids []string, options DeviceDeletion) (removed DeviceRemoval, err error) {
	return inTx(ctx, s.connection, func(tx session) (DeviceRemoval, error) { return tx.deleteDevices(ctx, actor, ids, options) })
}

func (s session) deleteDevices(ctx context.Context, actor string, ids []string, options DeviceDeletion) (removed DeviceRemoval, err error) {
	ids, err = collect(ctx, s, singleColumn[string], `SELECT id FROM devices WHERE id IN (SELECT name FROM {names}) ORDER BY id FOR UPDATE`, namesToJSONArray(ids))
	if err != nil {
		return removed, err
	}
	kept, err := s.cancelDeviceTasks(ctx, actor, ids, options, &removed)
	if err != nil {
		return removed, err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return kept[id] })
	removed.Deleted, removed.Kept = len(ids), len(kept)
	if options.DryRun || len(ids) == 0 {
		return removed, nil
	}
	if err := s.runSteps(ctx, "names", namesToJSONArray(ids), []step{
		{"deleting tokens", `DELETE FROM tokens WHERE device <> '' AND device IN (SELECT name FROM {names})`},
		{"remembering devices", `
			INSERT INTO deleted_devices (id, deleted_at, blocked, blocked_by, blocked_at, block_reason)
			SELECT id, {now}, blocked, blocked_by, blocked_at, block_reason FROM devices WHERE id IN (SELECT name FROM {names})`},
		{"deleting devices", `DELETE FROM devices WHERE id IN (SELECT name FROM {names})`},
	}); err != nil {
		return removed, err
	}
	if options.Refuse {
		if _, err := s.exec(ctx, `UPDATE deleted_devices SET refused = TRUE WHERE id IN (SELECT name FROM {names})`, namesToJSONArray(ids)); err != nil {
			return removed, err
		}
	}
	if err := s.recordAccountChanges(ctx, AccountDeleted, ids); err != nil {
		return removed, err
	}
	s.pendingNews.addDevices(ids...)
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, device) SELECT {now}, 'device.deleted', $2, 'operator', name FROM {names} WHERE TRUE ORDER BY n`, namesToJSONArray(ids), actor)
	return removed, err
}

// cancelDeviceTasks cancels the open tasks of devices and adds their numbers to removed. If options.CancelOpenTasks is false, it cancels
// nothing, and kept is the set of the devices that have open tasks.
func (s session) cancelDeviceTasks(ctx context.Context, actor string, devices []string, options DeviceDeletion, removed *DeviceRemoval) (kept map[string]bool, err error) {
	type openTask struct {
		id     int64
		device string
	}
	open, err := collect(ctx, s, func(t *openTask) []any { return []any{&t.id, &t.device} }, `
		SELECT t.id, t.device FROM {names} JOIN tasks t ON t.device = names.name AND t.state = 'pending' ORDER BY t.id FOR UPDATE OF t`, namesToJSONArray(devices))
	if err != nil {
		return nil, err
	}
	kept = map[string]bool{}
	ids := make([]int64, len(open))
	for i, t := range open {
		ids[i] = t.id
		kept[t.device] = !options.CancelOpenTasks
	}
	if !options.CancelOpenTasks {
		return kept, nil
	}
	var done BulkResult
	if !options.DryRun {
		if err := s.cancelTasks(ctx, actor, ids, &done); err != nil {
			return nil, err
		}
	}
	removed.Cancelled = int(done.Tasks)
	removed.Stopping, err = queryOne(ctx, s, singleColumn[int], `SELECT count(*) FROM {names} JOIN grants g ON g.device = names.name`, namesToJSONArray(devices))
	return nil, err
}

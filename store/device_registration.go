package store

import (
	"context"
	"slices"
)

// EnsureDevices returns the devices with these ids, in the order of ids, and registers each device that is not registered yet. It
// registers all missing devices in one transaction, or none.
func (s devices) EnsureDevices(ctx context.Context, ids ...string) (registered []Device, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		registered, err = tx.devices().ensure(ctx, ids)
		return err
	})
	return registered, err
}

// ensure registers each device in ids that is not registered yet, and returns all devices in the order of ids.
func (s devicesIn) ensure(ctx context.Context, ids []string) ([]Device, error) {
	// Rows are locked in one order, so that two concurrent calls cannot deadlock.
	ordered := slices.Compact(slices.Sorted(slices.Values(ids)))
	created, err := collect(ctx, s.session, singleColumn[string], `
		INSERT INTO devices (id, tags, attributes, created_at)
		SELECT name, '{}', '{}', {now} FROM {names} WHERE TRUE ORDER BY n ON CONFLICT DO NOTHING RETURNING id`, namesInput(ordered))
	if err != nil {
		return nil, err
	}
	if len(created) > 0 {
		if err := s.finishRegistration(ctx, created, step{"recording", `
			INSERT INTO events (at, kind, actor, actor_kind, device) SELECT {now}, 'device.created', name, 'device', name FROM {names} WHERE TRUE ORDER BY n`}); err != nil {
			return nil, err
		}
	}
	found, err := collect(ctx, s.session, deviceDest, `SELECT `+deviceColumns+` FROM {names} JOIN devices d ON d.id = names.name`, namesInput(ordered))
	if err != nil {
		return nil, err
	}
	return devicesInOrder(ids, found)
}

// devicesInOrder returns the found devices in the order of ids. It returns ErrNotFound if one of ids is missing in found, because its
// device was deleted after the INSERT.
func devicesInOrder(ids []string, found []Device) ([]Device, error) {
	byID := make(map[string]Device, len(found))
	for _, d := range found {
		byID[d.ID] = d
	}
	all := make([]Device, len(ids))
	for i, id := range ids {
		d, there := byID[id]
		if !there {
			return nil, ErrNotFound
		}
		all[i] = d
	}
	return all, nil
}

// register registers the device id with these settings for the operator actor, unless it is registered; created reports whether it did.
func (s devicesIn) register(ctx context.Context, actor, id string, spec DeviceSpec) (created bool, err error) {
	text, err := tagsText(spec.Tags)
	if err != nil {
		return false, err
	}
	if err := s.profiles().lockProfile(ctx, spec.Profile); err != nil {
		return false, err
	}
	n, err := s.exec(ctx, `
		INSERT INTO devices (id, tags, attributes, created_at, profile) VALUES ($1, $2, '{}', {now}, nullif($3, '')) ON CONFLICT DO NOTHING`,
		id, text, spec.Profile)
	if err != nil || n == 0 {
		return false, err
	}
	if err := s.finishRegistration(ctx, []string{id}); err != nil {
		return false, err
	}
	return true, s.recordEvent(ctx, Event{Kind: "device.created", Actor: actor, Device: id})
}

// finishRegistration must be called for newly registered devices (ids), in the transaction of their INSERT. It blocks a device again if
// the device was blocked when it was deleted, and runs steps. Its statement must come after the INSERT: if the INSERT had to wait for a
// concurrent deletion, only a later statement reads what the deletion wrote.
func (s devicesIn) finishRegistration(ctx context.Context, ids []string, steps ...step) error {
	return s.runSteps(ctx, "names", namesInput(ids), append([]step{
		{"blocking", `UPDATE devices SET blocked = TRUE WHERE id IN (SELECT g.id FROM {names} JOIN deleted_devices g ON g.id = names.name WHERE g.blocked)`},
		{"bringing back", `DELETE FROM deleted_devices WHERE id IN (SELECT name FROM {names})`},
	}, steps...))
}

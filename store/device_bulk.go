package store

import (
	"context"
	"fmt"
)

// DeviceChange changes spec, which holds the settings of the device id. ChangeDevices calls it for each device, perhaps more than once. If
// one call returns an error, no device is changed.
type DeviceChange func(id string, spec *DeviceSpec) error

// deviceRow holds the new settings of one changed device, in the form that a statement reads.
type deviceRow struct {
	N       int    `json:"n"`
	Device  string `json:"device"`
	Tags    string `json:"tags"`
	Profile string `json:"profile"`
	Detail  string `json:"detail"`
}

// ChangeDevices changes the settings of each registered device in ids, in one transaction, and returns how many devices it changed. It
// calls change for each device, perhaps more than once. If dryRun is true, nothing is written. If a device would get a profile that does
// not exist, ChangeDevices returns ErrUnknownProfile.
func (s devices) ChangeDevices(ctx context.Context, actor string, ids []string, dryRun bool, change DeviceChange) (changedCount int, err error) {
	err = s.write(ctx, func(tx session) error {
		changed, err := tx.devices().changeAll(ctx, ids, change)
		if changedCount = len(changed); err != nil || dryRun {
			return err
		}
		return tx.devices().storeChanged(ctx, actor, changed)
	})
	return changedCount, err
}

// changeAll locks the devices ids and calls change for each of them. It returns a row for each device whose settings change altered.
func (s devicesIn) changeAll(ctx context.Context, ids []string, change DeviceChange) (changed []deviceRow, err error) {
	list, err := collect(ctx, s.session, deviceDest,
		`SELECT `+deviceColumns+` FROM devices d WHERE d.id IN (SELECT name FROM {names}) ORDER BY d.id {lock}`, namesInput(ids))
	if err != nil {
		return nil, fmt.Errorf("locking devices: %w", err)
	}
	held := map[string]bool{}
	for _, d := range list {
		spec, words, err := d.applyChange(func(spec *DeviceSpec) error { return change(d.ID, spec) })
		if err != nil {
			return nil, err
		}
		if words == "" {
			continue
		}
		if spec.Profile != d.Profile && !held[spec.Profile] {
			if err := s.profiles().lockProfile(ctx, spec.Profile); err != nil {
				return nil, err
			}
			held[spec.Profile] = true
		}
		if spec.Profile != d.Profile {
			s.pendingNews.addDevices(d.ID) // the policies of its new profile may apply to its tasks
		}
		tags, err := tagsText(spec.Tags)
		if err != nil {
			return nil, err
		}
		changed = append(changed, deviceRow{len(changed), d.ID, tags, spec.Profile, words})
	}
	return changed, nil
}

// storeChanged writes the new settings in rows, and an event for each row.
func (s devicesIn) storeChanged(ctx context.Context, actor string, rows []deviceRow) error {
	if len(rows) == 0 {
		return nil
	}
	if _, err := s.exec(ctx, `
		UPDATE devices SET tags = changed.tags{json}, profile = nullif(changed.profile, '') FROM {changed} WHERE devices.id = changed.device`, toJSONInput(rows)); err != nil {
		return fmt.Errorf("changing devices: %w", err)
	}
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, device, detail)
		SELECT {now}, 'device.changed', $2, 'operator', device, detail FROM {changed} ORDER BY n`, toJSONInput(rows), actor)
	return err
}

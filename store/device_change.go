package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// ChangeDevice calls change with the settings of a device and stores the settings that change altered. It returns the device with the new
// settings. If change alters nothing, nothing is written. change runs inside the transaction, perhaps more than once; if it returns an
// error, the transaction is rolled back. Errors: ErrNotFound, ErrUnknownProfile.
func (s devices) ChangeDevice(ctx context.Context, actor, id string, change func(*DeviceSpec) error) (device Device, err error) {
	err = s.write(ctx, func(tx session) error {
		device, err = queryOne(ctx, tx, deviceDest, `SELECT `+deviceColumns+` FROM devices d WHERE d.id = $1 {lock}`, id)
		if err != nil {
			return err
		}
		spec, changes, err := device.applyChange(change)
		if err != nil || changes == "" {
			return err
		}
		text, err := tagsText(spec.Tags)
		if err != nil {
			return err
		}
		if err := tx.profiles().lockProfile(ctx, spec.Profile); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `UPDATE devices SET tags = $2, profile = nullif($3, '') WHERE id = $1`, id, text, spec.Profile); err != nil {
			return fmt.Errorf("changing device %s: %w", id, err)
		}
		if spec.Profile != device.Profile {
			tx.pendingNews.addDevices(id) // the policies of its new profile may apply to its tasks
		}
		device.Tags, device.Profile = spec.Tags, spec.Profile
		return tx.recordEvent(ctx, Event{Kind: "device.changed", Actor: actor, Device: id, Detail: changes})
	})
	return device, err
}

// applyChange calls change with the settings of the device and returns the changed settings. words names the changed settings for the audit
// log; it is empty if nothing changed.
func (d Device) applyChange(change func(*DeviceSpec) error) (spec DeviceSpec, words string, err error) {
	spec = DeviceSpec{Tags: maps.Clone(d.Tags), Profile: d.Profile}
	if err := change(&spec); err != nil {
		return spec, "", err
	}
	var changes []string
	if !maps.Equal(spec.Tags, d.Tags) {
		text, err := tagsText(spec.Tags)
		if err != nil {
			return spec, "", err
		}
		changes = append(changes, "tags="+text)
	}
	if spec.Profile != d.Profile {
		changes = append(changes, "profile="+cmp.Or(spec.Profile, "none"))
	}
	return spec, strings.Join(changes, " "), nil
}

// tagsText returns tags as a JSON object, the form in which they are stored. If tags is nil, the object is empty.
func tagsText(tags map[string]string) (string, error) {
	if tags == nil {
		return "{}", nil
	}
	text, err := json.Marshal(tags)
	if err != nil {
		return "", fmt.Errorf("tags: %w", err)
	}
	return string(text), nil
}

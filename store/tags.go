package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
)

// ChangeTags changes the tags of a device. change is called inside of the
// transaction, perhaps more than once, and its error ends it. ErrNotFound.
// Without a change nothing is written.
func (s *Store) ChangeTags(ctx context.Context, actor, id string, change func(tags map[string]string) error) (d Device, err error) {
	err = s.write(ctx, func(tx session) error {
		d, err = one(ctx, tx, deviceDest, `SELECT `+deviceColumns+` FROM devices d WHERE d.id = $1 {lock}`, id)
		if err != nil {
			return err
		}
		old := maps.Clone(d.Tags)
		if err := change(d.Tags); err != nil || maps.Equal(old, d.Tags) {
			return err
		}
		text, err := tagsText(d.Tags)
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `UPDATE devices SET tags = $2 WHERE id = $1`, id, text); err != nil {
			return fmt.Errorf("writing the tags of device %s: %w", id, err)
		}
		return tx.record(ctx, Event{Kind: "device.changed", Actor: actor, Device: id, Detail: "tags=" + text})
	})
	return d, err
}

// tagsText is how tags are stored; none are an empty object.
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

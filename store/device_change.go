package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"
)

// ChangeDevice calls change with the settings of a device, stores what change altered, and returns the device. change may run more than once. If
// it returns an error, nothing is changed. Errors: ErrNotFound, ErrUnknownProfile.
func (s devices) ChangeDevice(ctx context.Context, actor, id string, change func(*DeviceSpec) error) (device Device, err error) {
	err = s.write(ctx, func(tx session) error {
		device, err = queryOne(ctx, tx, deviceScanDest, `SELECT `+deviceColumns+` FROM devices d WHERE d.id = $1 FOR UPDATE`, id)
		if err != nil {
			return err
		}
		spec, changes, err := device.applyChange(change)
		if err != nil || changes == "" {
			return err
		}
		text, err := tagsJSON(spec.Tags)
		if err != nil {
			return err
		}
		if err := tx.lockProfile(ctx, spec.Profile); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `UPDATE devices SET tags = $2, profile = nullif($3, '') WHERE id = $1`, id, text, spec.Profile); err != nil {
			return fmt.Errorf("changing device %s: %w", id, err)
		}
		if spec.Profile != device.Profile {
			tx.pendingNews.addDevices(id) // the policies of the device's new profile may apply to its tasks
		}
		device.Tags, device.Profile = spec.Tags, spec.Profile
		return tx.recordEvent(ctx, Event{Kind: "device.changed", Actor: actor, Device: id, Detail: changes})
	})
	return device, err
}

// applyChange calls change and returns the changed settings. auditText names the changes for the audit log. It is empty if nothing changed.
func (d Device) applyChange(change func(*DeviceSpec) error) (spec DeviceSpec, auditText string, err error) {
	spec = DeviceSpec{Tags: maps.Clone(d.Tags), Profile: d.Profile}
	if err := change(&spec); err != nil {
		return spec, "", err
	}
	var changes []string
	if !maps.Equal(spec.Tags, d.Tags) {
		text, err := tagsJSON(spec.Tags)
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

// tagsJSON returns tags as a JSON object, the form in which they are stored. If tags is nil, the object is empty.
func tagsJSON(tags map[string]string) (string, error) {
	if tags == nil {
		return "{}", nil
	}
	text, err := json.Marshal(tags)
	if err != nil {
		return "", fmt.Errorf("tags: %w", err)
	}
	return string(text), nil
}

// DeviceChange changes spec, the settings of the device with this id. It may run more than once. If it returns an error, no device is changed.
type DeviceChange func(id string, spec *DeviceSpec) error

type deviceRow struct {
	N       int    `json:"n"`
	Device  string `json:"device"`
	Tags    string `json:"tags"`
	Profile string `json:"profile"`
	Detail  string `json:"detail"`
}

// ChangeDevices calls change for each registered device in ids, stores the settings in one transaction, and returns how many devices it
// changed. If dryRun is true, nothing is written. Error: ErrUnknownProfile.
func (s devices) ChangeDevices(ctx context.Context, actor string, ids []string, dryRun bool, change DeviceChange) (changedCount int, err error) {
	err = s.write(ctx, func(tx session) error {
		changed, err := tx.changeDevices(ctx, ids, change)
		if changedCount = len(changed); err != nil || dryRun {
			return err
		}
		return tx.storeChangedDevices(ctx, actor, changed)
	})
	return changedCount, err
}

// changeDevices locks the devices ids, calls change for each, and returns a row for each device that change altered.
func (s session) changeDevices(ctx context.Context, ids []string, change DeviceChange) (changed []deviceRow, err error) {
	list, err := collect(ctx, s, deviceScanDest,
		`SELECT `+deviceColumns+` FROM devices d WHERE d.id IN (SELECT name FROM {names}) ORDER BY d.id FOR UPDATE`, namesToJSONArray(ids))
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
			if err := s.lockProfile(ctx, spec.Profile); err != nil {
				return nil, err
			}
			held[spec.Profile] = true
		}
		if spec.Profile != d.Profile {
			s.pendingNews.addDevices(d.ID) // the policies of the device's new profile may apply to its tasks
		}
		tags, err := tagsJSON(spec.Tags)
		if err != nil {
			return nil, err
		}
		changed = append(changed, deviceRow{len(changed), d.ID, tags, spec.Profile, words})
	}
	return changed, nil
}

func (s session) storeChangedDevices(ctx context.Context, actor string, rows []deviceRow) error {
	if len(rows) == 0 {
		return nil
	}
	if _, err := s.exec(ctx, `
		UPDATE devices SET tags = changed.tags::json, profile = nullif(changed.profile, '') FROM {changed} WHERE devices.id = changed.device`, rowsToJSONArray(rows)); err != nil {
		return fmt.Errorf("changing devices: %w", err)
	}
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, device, detail)
		SELECT {now}, 'device.changed', $2, 'operator', device, detail FROM {changed} ORDER BY n`, rowsToJSONArray(rows), actor)
	return err
}

// SetBlocked blocks or unblocks a device. A device that is blocked is asked to stop its task. reason is for people and may be empty. If the
// device is already blocked, its old reason stays. Error: ErrNotFound.
func (s devices) SetBlocked(ctx context.Context, actor, id string, blocked bool, reason string) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.deviceByID(ctx, id); err != nil {
			return err
		}
		changed, err := tx.setDevicesBlocked(ctx, actor, []string{id}, blocked, reason, false)
		if err != nil || changed > 0 {
			return err
		}
		// The account is set even if the device is already blocked or unblocked, so an operator can repair an account that somebody
		// changed.
		return tx.recordAccountChanges(ctx, requiredAccountState(blocked), []string{id})
	})
}

// SetAllBlocked blocks or unblocks the registered devices in ids in one transaction, and returns how many it changed, or would change if
// dryRun is true. reason is as in SetBlocked.
func (s devices) SetAllBlocked(ctx context.Context, actor string, ids []string, blocked bool, reason string, dryRun bool) (changed int, err error) {
	return inTx(ctx, s.connection, func(tx session) (int, error) {
		return tx.setDevicesBlocked(ctx, actor, ids, blocked, reason, dryRun)
	})
}

func (s session) setDevicesBlocked(ctx context.Context, actor string, ids []string, blocked bool, reason string, dryRun bool) (changed int, err error) {
	ids, err = collect(ctx, s, singleColumn[string],
		`SELECT id FROM devices WHERE id IN (SELECT name FROM {names}) AND blocked <> $2 ORDER BY id FOR UPDATE`, namesToJSONArray(ids), blocked)
	if err != nil || dryRun || len(ids) == 0 {
		return len(ids), err
	}
	kind, by, note := "device.unblocked", "", ""
	if blocked {
		kind, by, note = "device.blocked", actor, reason
	}
	if _, err := s.exec(ctx, `
		UPDATE devices SET blocked = $2, blocked_by = $3, blocked_at = CASE WHEN $2 THEN {now} END, block_reason = $4
		WHERE id IN (SELECT name FROM {names})`, namesToJSONArray(ids), blocked, by, note); err != nil {
		return 0, fmt.Errorf("blocking or unblocking devices: %w", err)
	}
	if blocked {
		if _, err := s.exec(ctx, `UPDATE grants SET cancel_why = 'blocked' WHERE cancel_why = '' AND device IN (SELECT name FROM {names})`, namesToJSONArray(ids)); err != nil {
			return 0, fmt.Errorf("asking blocked devices to stop: %w", err)
		}
	}
	if err := s.recordAccountChanges(ctx, requiredAccountState(blocked), ids); err != nil {
		return 0, err
	}
	s.pendingNews.addDevices(ids...)
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, device, detail) SELECT {now}, $2, $3, 'operator', name, $4 FROM {names} WHERE TRUE ORDER BY n`, namesToJSONArray(ids), kind, actor, reason)
	return len(ids), err
}

// requiredAccountState returns the state that the account of a device must have.
func requiredAccountState(isDeviceBlocked bool) AccountState {
	if isDeviceBlocked {
		return AccountDisabled
	}
	return AccountEnabled
}

// NoisyFor is the time for which a device counts as noisy (it reports far more often than it may) after it was last recorded as noisy.
const NoisyFor = 5 * time.Minute

// IsNoisy reports whether the device counts as noisy at the time now, by the clock of the ledger.
func (d Device) IsNoisy(now time.Time) bool {
	return d.NoisyAt != nil && now.Sub(*d.NoisyAt) < NoisyFor
}

// RecordNoisy records that a registered device is noisy now. isNew is true if the device was not noisy before. Then the event device.noisy is
// written.
func (s devices) RecordNoisy(ctx context.Context, device, detail string) (isNew bool, err error) {
	defer wrapError(&err, "recording that device %s is noisy", device)
	err = s.write(ctx, func(tx session) error {
		changed, err := tx.exec(ctx, `UPDATE devices SET noisy_at = {now} WHERE id = $1 AND (noisy_at IS NULL OR noisy_at <= {now} - $2 * {ms})`, device, NoisyFor.Milliseconds())
		if isNew = changed > 0; err != nil {
			return err
		}
		if isNew {
			return tx.recordEvent(ctx, Event{Kind: "device.noisy", Actor: "dispatcher", Device: device, Detail: detail})
		}
		_, err = tx.exec(ctx, `UPDATE devices SET noisy_at = {now} WHERE id = $1`, device)
		return err
	})
	return isNew, err
}

// addNoisyCondition adds the condition of Noisy to q. IS NOT NULL repeats the condition of the index devices_noisy, because SQLite uses the
// index only then.
func (f DeviceFilter) addNoisyCondition(q *query) {
	switch {
	case f.Noisy == nil:
	case *f.Noisy:
		q.where("d.noisy_at IS NOT NULL AND d.noisy_at > {now} - %s * {ms}", NoisyFor.Milliseconds())
	default:
		q.where("(d.noisy_at IS NULL OR d.noisy_at <= {now} - %s * {ms})", NoisyFor.Milliseconds())
	}
}

// mergeAttributes returns old with the merge patch applied. changed is false if the result equals old. If the result exceeds the limits of
// attributes, the error is ErrTooLarge. The digits of numbers stay exactly as they are.
func mergeAttributes(old, patch json.RawMessage) (merged json.RawMessage, changed bool, err error) {
	target, err := decodeObject(old)
	if err != nil {
		return nil, false, err
	}
	changes, err := decodeObject(patch)
	if err != nil {
		return nil, false, err
	}
	if len(target) == 0 {
		target = map[string]any{}
	}
	before, err := encodeObject(target)
	if err != nil {
		return nil, false, err
	}
	merged, err = encodeObject(mergePatch(target, changes))
	if err != nil {
		return nil, false, err
	}
	if len(target) > maxAttributes {
		return nil, false, fmt.Errorf("attributes: %w: %d members, at most %d", ErrTooLarge, len(target), maxAttributes)
	}
	if len(merged) > maxAttributesSize {
		return nil, false, fmt.Errorf("attributes: %w: %d bytes, at most %d", ErrTooLarge, len(merged), maxAttributesSize)
	}
	return merged, !bytes.Equal(before, merged), nil
}

// decodeObject decodes the JSON object raw. It keeps the digits of numbers exactly.
func decodeObject(raw json.RawMessage) (members map[string]any, err error) {
	var o map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&o); err != nil {
		return nil, fmt.Errorf("attributes: must be a JSON object: %w", err)
	}
	return o, nil
}

// encodeObject encodes members as JSON. It does not escape characters such as &, because a longer text could exceed maxAttributesSize.
func encodeObject(members map[string]any) (json.RawMessage, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(members); err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	return bytes.TrimSpace(text.Bytes()), nil
}

// mergePatch implements MergePatch of RFC 7396 for a patch that is an object. It changes target and returns it.
func mergePatch(target, patch map[string]any) (changedTarget map[string]any) {
	for name, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(target, name)
		case map[string]any:
			nested, _ := target[name].(map[string]any)
			if nested == nil {
				nested = map[string]any{}
			}
			target[name] = mergePatch(nested, v)
		default:
			target[name] = v
		}
	}
	return target
}

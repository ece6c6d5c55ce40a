package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// NewDevice is one device of an import.
type NewDevice struct {
	ID   string
	Tags json.RawMessage // a JSON object of strings; nil means no tags
	Hash []byte          // SHA-256 of its token

	Profile string // empty means no profile

	Update func(device NewDevice, spec *DeviceSpec) error // only for UpdateExisting: changes the settings of an existing device; an error refuses the import
}

// OnExisting decides what an import does with devices that are registered already.
type OnExisting string

// The ways to treat registered devices.
const (
	RefuseExisting OnExisting = "refuse" // the whole import is refused
	SkipExisting   OnExisting = "skip"   // the registered devices are not changed
	RotateExisting OnExisting = "rotate" // each registered device gets one more token; its tags are not changed
	UpdateExisting OnExisting = "update" // the settings of the registered devices are changed, but not their tokens
)

// EntryError is an error about one entry of a list.
type EntryError struct {
	Entry int // index in the list, from 0
	Err   error
}

// Error returns the text of Err. The caller must name the entry.
func (e *EntryError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *EntryError) Unwrap() error { return e.Err }

// importChunkSize is the maximum number of devices in one statement.
const importChunkSize = 1000

// ImportDevices registers newDevices (unique ids) with their tokens, all or none. gotToken[i] is true if newDevices[i] was given its token.
// With RotateExisting, the older tokens of a device expire after overlap.
//
// It keeps the accounts that stage created at the MQTT broker for these devices, or returns ErrAccountConflict if one is missing. Other
// errors are EntryErrors: ErrExists with RefuseExisting, and ErrUnknownProfile. An idempotency key (WithOnce) makes it take effect once. The
// repetition gives no tokens.
func (s devices) ImportDevices(ctx context.Context, actor string, newDevices []NewDevice, onExisting OnExisting, overlap time.Duration, stage Stage) (gotToken []bool, err error) {
	leave, err := s.beginOnce(OnceFrom(ctx))
	defer leave()
	if err != nil {
		return nil, err
	}
	order := importIndexesByDeviceID(newDevices)
	err = s.write(ctx, func(tx session) error {
		gotToken = make([]bool, len(newDevices))
		var total int // the answer that runOnce stores is only this number
		err := tx.runOnce(ctx, &total, func() error {
			total = len(newDevices)
			if err := tx.lockProfiles(ctx, newDevices); err != nil {
				return err
			}
			created := 0
			for part := range slices.Chunk(order, importChunkSize) {
				n, err := (importChunk{tx, actor, makeImportRows(newDevices, part), gotToken}).importDevices(ctx, onExisting, overlap)
				if created += n; err != nil {
					return err
				}
			}
			if created == 0 {
				return nil
			}
			return tx.recordEvent(ctx, Event{Kind: "devices.imported", Actor: actor, Detail: fmt.Sprintf("created=%d existing=%d", created, total-created)})
		})
		if err != nil || stage == 0 {
			return err
		}
		return tx.keepStagedAccounts(ctx, stage, idsWithToken(newDevices, gotToken))
	})
	return gotToken, err
}

// checkImport returns the error that ImportDevices would return for newDevices, except the error for registered devices (RefuseExisting).
func (s session) checkImport(ctx context.Context, newDevices []NewDevice, onExisting OnExisting) error {
	if err := s.lockProfiles(ctx, newDevices); err != nil || onExisting != UpdateExisting {
		return err
	}
	for part := range slices.Chunk(importIndexesByDeviceID(newDevices), importChunkSize) {
		rows := makeImportRows(newDevices, part)
		if _, err := (importChunk{session: s}).changedRows(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}

// idsWithToken returns the ids of the newDevices whose element of gotToken is true.
func idsWithToken(newDevices []NewDevice, gotToken []bool) (ids []string) {
	for i, d := range newDevices {
		if gotToken[i] {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// lockProfiles locks the profiles of newDevices, in the order of their names, against their deletion.
func (s session) lockProfiles(ctx context.Context, newDevices []NewDevice) error {
	first := map[string]int{}
	for i, d := range newDevices {
		if _, seen := first[d.Profile]; !seen {
			first[d.Profile] = i
		}
	}
	for _, name := range slices.Sorted(maps.Keys(first)) {
		err := s.lockProfile(ctx, name)
		if errors.Is(err, ErrUnknownProfile) {
			return &EntryError{first[name], err}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type importRow struct {
	N      int    `json:"n"`
	Device string `json:"device"`
	Tags   string `json:"tags"`
	Hash   string `json:"hash"`

	Profile string `json:"profile"`
	entry   int    // index in the list of the import
	update  func(*DeviceSpec) error
}

// importIndexesByDeviceID returns the indexes of newDevices, sorted by device id. Concurrent imports lock rows in this order, so they cannot
// deadlock.
func importIndexesByDeviceID(newDevices []NewDevice) (indexes []int) {
	order := make([]int, len(newDevices))
	for i := range newDevices {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(newDevices[a].ID, newDevices[b].ID) })
	return order
}

// makeImportRows returns the rows of a chunk of newDevices. deviceIndexes has the indexes of the devices in the chunk. The rows are made for
// each chunk, because the rows of all devices would be a second copy of the list in memory.
func makeImportRows(newDevices []NewDevice, deviceIndexes []int) []importRow {
	rows := make([]importRow, len(deviceIndexes))
	for n, i := range deviceIndexes {
		d := newDevices[i]
		rows[n] = importRow{N: n, Device: d.ID, Tags: "{}", Hash: hex.EncodeToString(d.Hash), Profile: d.Profile, entry: i, update: func(spec *DeviceSpec) error { return d.Update(d, spec) }}
		if d.Tags != nil {
			rows[n].Tags = string(d.Tags)
		}
	}
	return rows
}

// importChunk is one chunk of an import, at most importChunkSize devices.
type importChunk struct {
	session
	actor    string
	rows     []importRow
	gotToken []bool // one value per entry of the whole list of the import
}

// importDevices registers the new devices of the chunk with tokens and returns their number. onExisting decides about registered devices. With
// RotateExisting, the older tokens of these devices expire after tokenOverlap. It records no event for each new device.
func (p importChunk) importDevices(ctx context.Context, onExisting OnExisting, tokenOverlap time.Duration) (created int, err error) {
	fresh, err := p.insertNewDevices(ctx)
	if err != nil {
		return 0, err
	}
	if err := p.giveTokens(ctx, fresh, ""); err != nil {
		return 0, err
	}
	old := slices.DeleteFunc(slices.Clone(p.rows), func(r importRow) bool { return p.gotToken[r.entry] })
	switch {
	case len(old) == 0 || onExisting == SkipExisting:
		return len(fresh), nil
	case onExisting == RotateExisting:
		return len(fresh), p.addTokensToRegistered(ctx, old, tokenOverlap)
	case onExisting == UpdateExisting:
		return len(fresh), p.updateSettings(ctx, old)
	}
	first := slices.MinFunc(old, func(a, b importRow) int { return a.entry - b.entry })
	return 0, &EntryError{first.entry, fmt.Errorf("device %s: %w", first.Device, ErrExists)}
}

func (p importChunk) insertNewDevices(ctx context.Context) (inserted []importRow, err error) {
	created, err := collect(ctx, p.session, singleColumn[string], `
		INSERT INTO devices (id, tags, attributes, created_at, profile, registered_by)
		SELECT device, tags::json, '{}', {now}, nullif(profile, ''), $2 FROM {imports} WHERE TRUE ORDER BY n
		ON CONFLICT DO NOTHING RETURNING id`, rowsToJSONArray(p.rows), p.actor)
	if err != nil {
		return nil, fmt.Errorf("registering devices: %w", err)
	}
	return p.rowsOfDevices(created), p.finishRegistration(ctx, namesToJSONArray(created))
}

// updateSettings changes the settings of devices that were registered before the import.
func (p importChunk) updateSettings(ctx context.Context, registered []importRow) error {
	changed, err := p.changedRows(ctx, registered)
	if err != nil {
		return err
	}
	return p.storeChangedDevices(ctx, p.actor, changed)
}

func (p importChunk) changedRows(ctx context.Context, registered []importRow) ([]deviceRow, error) {
	ids, rows := make([]string, len(registered)), make(map[string]importRow, len(registered))
	for i, r := range registered {
		ids[i], rows[r.Device] = r.Device, r
	}
	return p.changeDevices(ctx, ids, func(id string, spec *DeviceSpec) error {
		if err := rows[id].update(spec); err != nil {
			return &EntryError{rows[id].entry, fmt.Errorf("device %s: %w", id, err)}
		}
		return nil
	})
}

// addTokensToRegistered gives each registered device one more token. The older tokens of the device expire after tokenOverlap. Deleted
// devices get no token.
func (p importChunk) addTokensToRegistered(ctx context.Context, registered []importRow, tokenOverlap time.Duration) error {
	locked, err := collect(ctx, p.session, singleColumn[string],
		`SELECT id FROM devices WHERE id IN (SELECT device FROM {imports}) ORDER BY id FOR UPDATE`, rowsToJSONArray(registered))
	if err != nil {
		return fmt.Errorf("locking devices: %w", err)
	}
	lockedRows := p.rowsOfDevices(locked)
	if _, err := p.exec(ctx, `
		DELETE FROM tokens WHERE device <> '' AND device IN (SELECT device FROM {imports}) AND expires_at <= {now}`, rowsToJSONArray(lockedRows)); err != nil {
		return err
	}
	if _, err := p.exec(ctx, `
		UPDATE tokens SET expires_at = {now} + $2 * {ms}
		WHERE device <> '' AND device IN (SELECT device FROM {imports})
		AND (expires_at IS NULL OR expires_at > {now} + $2 * {ms})`, rowsToJSONArray(lockedRows), tokenOverlap.Milliseconds()); err != nil {
		return err
	}
	return p.giveTokens(ctx, lockedRows, "overlap="+tokenOverlap.String())
}

// giveTokens stores the token of each device in rows, and records an event for each device if eventDetail is not empty.
func (p importChunk) giveTokens(ctx context.Context, rows []importRow, eventDetail string) error {
	_, err := p.exec(ctx, `
		INSERT INTO tokens (device, hash, created_at) SELECT device, {unhex hash}, {now} FROM {imports} ORDER BY n`, rowsToJSONArray(rows))
	if err != nil {
		return fmt.Errorf("storing tokens: %w", err)
	}
	if eventDetail != "" {
		if _, err = p.exec(ctx, `
			INSERT INTO events (at, kind, actor, actor_kind, device, detail)
			SELECT {now}, 'device.token_added', $2, 'operator', device, $3 FROM {imports} ORDER BY n`, rowsToJSONArray(rows), p.actor, eventDetail); err != nil {
			return fmt.Errorf("recording an import: %w", err)
		}
	}
	for _, r := range rows {
		p.gotToken[r.entry] = true
	}
	return nil
}

func (p importChunk) rowsOfDevices(devices []string) []importRow {
	wanted := make(map[string]bool, len(devices))
	for _, d := range devices {
		wanted[d] = true
	}
	return slices.DeleteFunc(slices.Clone(p.rows), func(r importRow) bool { return !wanted[r.Device] })
}

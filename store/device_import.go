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

	Update func(*DeviceSpec) error // only with UpdateExisting: changes the settings of the device if it exists; its error refuses the import
}

// Existing decides what an import does with devices that are registered already.
type Existing string

// The ways to treat registered devices.
const (
	RefuseExisting Existing = "refuse" // the whole import is refused
	SkipExisting   Existing = "skip"   // they are not changed
	RotateExisting Existing = "rotate" // they get one more token; their tags are not changed
	UpdateExisting Existing = "update" // their settings are changed; their tokens are not changed
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

// importPart is the maximum number of devices in one statement.
const importPart = 1000

// ImportDevices registers devices with their tokens, all or none. The ids in list must be unique. given has one value per entry: whether
// its device was given its token. For RotateExisting the older tokens of a device expire after overlap. The accounts of stage are kept for
// each device that was given a token; if such a device has no account of the stage, it returns ErrOvertaken. It returns an EntryError with
// ErrExists for a registered device if existing is RefuseExisting, and with ErrUnknownProfile for a profile that does not exist. With
// WithOnce a repeated request takes effect once; a replay gives no tokens.
func (s devices) ImportDevices(ctx context.Context, actor string, list []NewDevice, existing Existing, overlap time.Duration, stage Stage) (given []bool, err error) {
	leave, err := s.enter(OnceOf(ctx))
	defer leave()
	if err != nil {
		return nil, err
	}
	order := importOrder(list)
	err = s.write(ctx, func(tx session) error {
		given = make([]bool, len(list))
		var total int // the stored answer is only this number
		err := tx.once(ctx, &total, func() error {
			total = len(list)
			if err := tx.profiles().holdAll(ctx, list); err != nil {
				return err
			}
			for part := range slices.Chunk(order, importPart) {
				if err := (devicesImport{tx, actor, importRows(list, part), given}).run(ctx, existing, overlap); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || stage == 0 {
			return err
		}
		return tx.credentials().keepStaged(ctx, stage, idsOf(list, given))
	})
	return given, err
}

// checkImport returns the errors that ImportDevices would return, except for devices that exist.
func (s devicesIn) checkImport(ctx context.Context, list []NewDevice, existing Existing) error {
	if err := s.profiles().holdAll(ctx, list); err != nil || existing != UpdateExisting {
		return err
	}
	for part := range slices.Chunk(importOrder(list), importPart) {
		rows := importRows(list, part)
		if _, err := (devicesImport{session: s.session}).changes(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}

// idsOf returns the ids of the devices that were given a token.
func idsOf(list []NewDevice, given []bool) (ids []string) {
	for i, d := range list {
		if given[i] {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// holdAll holds the profiles of all devices, in the order of their names.
func (s profilesIn) holdAll(ctx context.Context, list []NewDevice) error {
	first := map[string]int{}
	for i, d := range list {
		if _, seen := first[d.Profile]; !seen {
			first[d.Profile] = i
		}
	}
	for _, name := range slices.Sorted(maps.Keys(first)) {
		err := s.hold(ctx, name)
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

// importOrder returns the indexes of list in the order of the ids, so that two concurrent imports cannot deadlock.
func importOrder(list []NewDevice) []int {
	order := make([]int, len(list))
	for i := range list {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(list[a].ID, list[b].ID) })
	return order
}

// importRows returns the rows of one part. The rows of all parts at once would be a second copy of the list.
func importRows(list []NewDevice, entries []int) []importRow {
	rows := make([]importRow, len(entries))
	for n, i := range entries {
		d := list[i]
		rows[n] = importRow{N: n, Device: d.ID, Tags: "{}", Hash: hex.EncodeToString(d.Hash), Profile: d.Profile, entry: i, update: d.Update}
		if d.Tags != nil {
			rows[n].Tags = string(d.Tags)
		}
	}
	return rows
}

// devicesImport is one part of an import.
type devicesImport struct {
	session
	actor string
	rows  []importRow
	given []bool // for the whole list
}

func (p devicesImport) run(ctx context.Context, existing Existing, overlap time.Duration) error {
	fresh, err := p.insert(ctx)
	if err != nil {
		return err
	}
	if err := p.giveTokens(ctx, fresh, "device.created", ""); err != nil {
		return err
	}
	old := slices.DeleteFunc(slices.Clone(p.rows), func(r importRow) bool { return p.given[r.entry] })
	switch {
	case len(old) == 0 || existing == SkipExisting:
		return nil
	case existing == RotateExisting:
		return p.rotate(ctx, old, overlap)
	case existing == UpdateExisting:
		return p.update(ctx, old)
	}
	first := slices.MinFunc(old, func(a, b importRow) int { return a.entry - b.entry })
	return &EntryError{first.entry, fmt.Errorf("device %s: %w", first.Device, ErrExists)}
}

// insert registers the devices that are not registered yet, and returns their rows.
func (p devicesImport) insert(ctx context.Context) ([]importRow, error) {
	created, err := collect(ctx, p.session, only[string], `
		INSERT INTO devices (id, tags, attributes, created_at, profile)
		SELECT device, tags{json}, '{}', {now}, nullif(profile, '') FROM {imports} WHERE TRUE ORDER BY n
		ON CONFLICT DO NOTHING RETURNING id`, input(p.rows))
	if err != nil {
		return nil, fmt.Errorf("registering devices: %w", err)
	}
	return p.named(created), p.devices().bringBack(ctx, created)
}

// update changes devices that are registered already.
func (p devicesImport) update(ctx context.Context, old []importRow) error {
	changed, err := p.changes(ctx, old)
	if err != nil {
		return err
	}
	return p.devices().keepChanged(ctx, p.actor, changed)
}

// changes returns the changes of devices that are registered already.
func (p devicesImport) changes(ctx context.Context, old []importRow) ([]deviceRow, error) {
	ids, rows := make([]string, len(old)), make(map[string]importRow, len(old))
	for i, r := range old {
		ids[i], rows[r.Device] = r.Device, r
	}
	return p.devices().changeAll(ctx, ids, func(id string, spec *DeviceSpec) error {
		if err := rows[id].update(spec); err != nil {
			return &EntryError{rows[id].entry, fmt.Errorf("device %s: %w", id, err)}
		}
		return nil
	})
}

// rotate locks the devices and gives them their tokens. A device that was deleted concurrently gets no token.
func (p devicesImport) rotate(ctx context.Context, old []importRow, overlap time.Duration) error {
	locked, err := collect(ctx, p.session, only[string],
		`SELECT id FROM devices WHERE id IN (SELECT device FROM {imports}) ORDER BY id {lock}`, input(old))
	if err != nil {
		return fmt.Errorf("locking devices: %w", err)
	}
	there := p.named(locked)
	if _, err := p.exec(ctx, `
		DELETE FROM tokens WHERE device <> '' AND device IN (SELECT device FROM {imports}) AND expires_at <= {now}`, input(there)); err != nil {
		return err
	}
	if _, err := p.exec(ctx, `
		UPDATE tokens SET expires_at = {now} + $2 * {ms}
		WHERE device <> '' AND device IN (SELECT device FROM {imports})
		AND (expires_at IS NULL OR expires_at > {now} + $2 * {ms})`, input(there), overlap.Milliseconds()); err != nil {
		return err
	}
	return p.giveTokens(ctx, there, "device.token_added", "overlap="+overlap.String())
}

func (p devicesImport) giveTokens(ctx context.Context, rows []importRow, kind, detail string) error {
	_, err := p.exec(ctx, `
		INSERT INTO tokens (device, hash, created_at) SELECT device, {unhex hash}, {now} FROM {imports} ORDER BY n`, input(rows))
	if err != nil {
		return fmt.Errorf("keeping tokens: %w", err)
	}
	_, err = p.exec(ctx, `
		INSERT INTO events (at, kind, actor, device, detail)
		SELECT {now}, $2, $3, device, $4 FROM {imports} ORDER BY n`, input(rows), kind, p.actor, detail)
	if err != nil {
		return fmt.Errorf("recording an import: %w", err)
	}
	for _, r := range rows {
		p.given[r.entry] = true
	}
	return nil
}

// named returns the rows for devices, in the order of the part.
func (p devicesImport) named(devices []string) []importRow {
	wanted := make(map[string]bool, len(devices))
	for _, d := range devices {
		wanted[d] = true
	}
	return slices.DeleteFunc(slices.Clone(p.rows), func(r importRow) bool { return !wanted[r.Device] })
}

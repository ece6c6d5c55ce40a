package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// devices are the registered devices, with what is known of them.
type devices struct{ *connection }

// SeenWithin is how exact the ledger has it when a device was seen that only polls. Of
// others it knows within seconds.
const SeenWithin = time.Minute

// Device is a field device.
type Device struct {
	ID         string
	Blocked    bool
	OwnToken   bool              // has used a token of its own: fleet tokens no longer act for it
	HasToken   bool              // has one of its own that is valid
	Tags       map[string]string // the operator's
	Profile    string            // whose policies hold for what it starts; the operator's; empty: none
	Attributes json.RawMessage   // the device's; a JSON object
	CreatedAt  time.Time
	LastSeen   *time.Time // to within SeenWithin
	Reach      Reach      // as of about then
}

// Revoked devices have used a token of their own, and have none left that is valid.
func (d Device) Revoked() bool { return d.OwnToken && !d.HasToken }

// DeviceSpec is what an operator decides about a device.
type DeviceSpec struct {
	Tags    map[string]string
	Profile string // empty: none
}

// Token is a credential; only the SHA-256 of its secret is stored.
type Token struct {
	ID        int64
	Name      string
	Device    string   // set: this device's credential; empty: an operator's
	Role      string   // operator tokens: viewer, operator, admin, verifier, caller
	Pools     []string // that a caller may use: patterns; nil: none
	LimitSets []string // as Pools
	CreatedAt time.Time
	ExpiresAt *time.Time
	LastUsed  *time.Time // in lists of operator tokens, to within an hour; nil: never
}

// Event is one entry of the activity and audit log.
type Event struct {
	ID     int64
	At     time.Time
	Kind   string // e.g. task.granted, task.succeeded, pool.changed
	Actor  string // operator token's name, device id or "reaper"
	Pool   string
	Batch  int64
	Task   int64
	Device string
	Token  int64
	Detail string
}

// Attributes of a device, merged, are limited to this.
const (
	maxAttributes     = 64
	maxAttributesSize = 8 << 10
)

const deviceColumns = `d.id, d.blocked, d.own_token, EXISTS (
		SELECT 1 FROM tokens k WHERE k.device = d.id AND k.device <> '' AND ` + validToken + `),
	d.tags, d.profile, d.attributes, d.created_at, d.last_seen, d.reach`

// deviceDest takes NULLs: the device may not be registered.
func deviceDest(d *Device) []any {
	return []any{
		opt(&d.ID), opt(&d.Blocked), opt(&d.OwnToken), opt(&d.HasToken), fromJSON(&d.Tags), opt(&d.Profile), document{&d.Attributes}, instant{&d.CreatedAt}, maybe{&d.LastSeen}, opt(&d.Reach),
	}
}

func (s devicesIn) byID(ctx context.Context, id string) (Device, error) {
	return one(ctx, s.session, deviceDest, `SELECT `+deviceColumns+` FROM devices d WHERE d.id = $1`, id)
}

// Device returns one device; ErrNotFound.
func (s devices) Device(ctx context.Context, id string) (Device, error) {
	return s.read().devices().byID(ctx, id)
}

// DeviceFilter selects devices; a zero field selects all.
type DeviceFilter struct {
	Tags    map[string]string // has all of them
	Profile string
	Blocked *bool
	Prefix  string // what their ids begin with
	After   string // ids above
	Limit   int    // default 100, at most 1000
}

// Devices returns the devices that match, by id.
func (s devices) Devices(ctx context.Context, f DeviceFilter) (found []Device, err error) {
	q := query{text: `SELECT ` + deviceColumns + ` FROM devices d`}
	if err := f.where(&q); err != nil {
		return nil, err
	}
	text, args := q.end(" ORDER BY d.id", f.Limit)
	err = s.selecting(ctx, f, func(in session) error {
		found, err = collect(ctx, in, deviceDest, text, args...)
		return err
	})
	return found, err
}

// selecting runs a reading of the devices that f selects. It is planned for its values.
func (s devices) selecting(ctx context.Context, f DeviceFilter, read func(session) error) error {
	if len(f.Tags) == 0 {
		return read(s.planned())
	}
	return s.atOnce(ctx, func(tx session) error {
		if err := tx.findByTags(ctx); err != nil {
			return err
		}
		return read(tx.unprepared())
	})
}

// findByTags comes before a statement that selects devices by tags. Their index can only be read
// as a bitmap, and Postgres avoids those elsewhere (withSettings).
func (s session) findByTags(ctx context.Context) error {
	if s.byTags == "" {
		return nil
	}
	_, err := s.exec(ctx, s.byTags)
	return err
}

// where adds the conditions.
func (f DeviceFilter) where(q *query) error {
	if len(f.Tags) > 0 {
		tags, err := tagsText(f.Tags)
		if err != nil {
			return err
		}
		q.where("{tagged %s}", tags) // the first: the words know this position
	}
	whereSet(q, "d.profile = %s", f.Profile)
	q.where("d.id > %s", f.After)
	if f.Prefix != "" { // ids are compared byte by byte, and all their characters are below ~
		q.where("d.id >= %s", f.Prefix)
		q.where("d.id < %s", f.Prefix+"~")
	}
	if f.Blocked != nil {
		q.where("d.blocked = %s", *f.Blocked)
	}
	return nil
}

// DevicesOf returns those of these devices that are registered, by id.
func (s devices) DevicesOf(ctx context.Context, ids []string) ([]Device, error) {
	return collect(ctx, s.read(), deviceDest,
		`SELECT `+deviceColumns+` FROM {names} JOIN devices d ON d.id = names.name ORDER BY d.id`, names(ids))
}

// CreateDevice registers a device with its credential, of which its account
// hears through set; ErrExists, ErrUnknownProfile. With WithOnce it takes effect
// once.
func (s devices) CreateDevice(ctx context.Context, actor, id string, spec DeviceSpec, tokenHash []byte, set SetAccount) (Device, error) {
	leave, err := s.enter(OnceOf(ctx))
	defer leave()
	if err != nil {
		return Device{}, err
	}
	var d Device
	err = s.write(ctx, func(tx session) error {
		err := tx.once(ctx, &d, func() (err error) {
			d, err = tx.devices().create(ctx, actor, id, spec, tokenHash)
			return err
		})
		if once := OnceOf(ctx); err != nil || once != nil && once.Replayed {
			return err
		}
		return tx.credentials().setAccount(ctx, id, set)
	})
	return d, err
}

func (s devicesIn) create(ctx context.Context, actor, id string, spec DeviceSpec, tokenHash []byte) (Device, error) {
	created, err := s.register(ctx, actor, id, spec)
	if err != nil {
		return Device{}, err
	}
	if !created {
		return Device{}, fmt.Errorf("device %s: %w", id, ErrExists)
	}
	if _, err := s.credentials().addToken(ctx, Token{Device: id}, tokenHash); err != nil {
		return Device{}, err
	}
	return s.byID(ctx, id)
}

// SetBlocked blocks or unblocks a device; blocking also asks it to stop what
// it runs. ErrNotFound.
func (s devices) SetBlocked(ctx context.Context, actor, id string, blocked bool) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.devices().byID(ctx, id); err != nil {
			return err
		}
		changed, err := tx.exec(ctx, `UPDATE devices SET blocked = $2 WHERE id = $1 AND blocked <> $2`, id, blocked)
		if err != nil {
			return err
		}
		kind, state := "device.unblocked", AccountEnabled
		if blocked {
			kind, state = "device.blocked", AccountDisabled
			if _, err := tx.exec(ctx, `UPDATE grants SET cancel_why = 'blocked' WHERE device = $1 AND cancel_why = ''`, id); err != nil {
				return err
			}
		}
		// Also when nothing changed: said once more, it mends an account that
		// somebody changed at the broker.
		if err := tx.credentials().noteAccount(ctx, id, state); err != nil || changed == 0 {
			return err
		}
		tx.telling.devices(id)
		return tx.record(ctx, Event{Kind: kind, Actor: actor, Device: id})
	})
}

// MergeAttributes applies a merge patch (RFC 7396) to the device's attributes.
// ErrTooLarge, and nothing changes, when they would have more than 64 members
// or 8 KiB, or are no object. ErrNotFound. Without a change nothing is written.
func (s devices) MergeAttributes(ctx context.Context, id string, patch json.RawMessage) error {
	return s.write(ctx, func(tx session) error {
		var old json.RawMessage
		if err := tx.rowOf(ctx, `SELECT attributes FROM devices WHERE id = $1 {lock}`, []any{id}, document{&old}); err != nil {
			return err
		}
		merged, changed, err := mergeAttributes(old, patch)
		if err != nil || !changed {
			return err
		}
		_, err = tx.exec(ctx, `UPDATE devices SET attributes = $2{json} WHERE id = $1`, id, string(merged))
		return err
	})
}

// Seen is the last report of a device.
type Seen struct {
	At    time.Time
	Reach Reach // how it can be told of something since
}

type seenRow struct {
	Device string `json:"device"`
	AtMS   int64  `json:"at_ms"`
	Reach  Reach  `json:"reach"`
}

// seenOrder is the largest error of the time of a report. A replica extrapolates the ledger's clock
// from a reading that began at most 2 s ago, so the time can be ahead by the duration of the reading.
const seenOrder = 2 * time.Second

// TouchDevices moves the last-seen times of devices forward, never back, and stores the reach of the
// latest report. It ignores ids that are not registered. If two reports are less than seenOrder
// apart, their order is unclear, and a reach other than ReachNone wins: a device that waits must not
// be stored as one that polls, because no new task would be offered to it. If the stored time is in
// the future, the clock of the ledger was set back, and the reach in seen is stored.
func (s devices) TouchDevices(ctx context.Context, seen map[string]Seen) error {
	if len(seen) == 0 {
		return nil
	}
	rows := make([]seenRow, 0, len(seen))
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		rows = append(rows, seenRow{id, seen[id].At.UnixMilli(), seen[id].Reach})
	}
	return s.write(ctx, func(tx session) error {
		const (
			later   = `(d.last_seen IS NULL OR d.last_seen < {epoch} + seen.at_ms * {ms})`
			unclear = `(seen.reach <> 0 AND d.last_seen < {epoch} + (seen.at_ms + $2) * {ms} OR d.last_seen > {now} + $2 * {ms})`
		)
		_, err := tx.exec(ctx, `
			UPDATE devices AS d SET last_seen = CASE WHEN `+later+` THEN {epoch} + seen.at_ms * {ms} ELSE d.last_seen END, reach = seen.reach
			FROM {seen} WHERE d.id = seen.device AND (`+later+` OR d.reach <> seen.reach AND `+unclear+`)`, input(rows), seenOrder.Milliseconds())
		return err
	})
}

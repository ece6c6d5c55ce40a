package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// devices is the part of the ledger that holds the registered devices.
type devices struct{ *connection }

// SeenPrecision is the precision of the stored last_seen time of a device that only polls. For other devices it is a few seconds.
const SeenPrecision = time.Minute

// Device is a device in the field, as registered in the ledger.
type Device struct {
	ID         string
	Blocked    bool
	OwnToken   bool              // the device has used a token of its own, so fleet tokens no longer act for it
	HasToken   bool              // the device has a valid token of its own
	Tags       map[string]string // set by operators
	Profile    string            // a profile, whose policies apply to the tasks of the device; set by operators; empty means none
	Attributes json.RawMessage   // reported by the device; a JSON object
	CreatedAt  time.Time
	LastSeen   *time.Time // accurate to SeenPrecision; nil means never
	QuietUntil *time.Time // the same as LastReport.QuietUntil; nil means that the device never reported
	NoisyAt    *time.Time // the last time at which the device was recorded as reporting too often (see NoisyFor); nil means never
	Reach      Reach      // how the device could be notified after its last stored report
	Wire       string     // the wire (protocol) of the last stored report: http, mqtt or hawkbit; empty means unknown

	RegisteredBy string // name of an operator token, or as in Registration

	BlockedBy   string     // operator; empty if the device is not blocked, or waits for an approval
	BlockedAt   *time.Time // nil if BlockedBy is empty
	BlockReason string     // may be empty
}

// Revoked reports whether the device has used a token of its own and has no valid token left.
func (d Device) Revoked() bool { return d.OwnToken && !d.HasToken }

// DeviceSpec holds the settings of a device that an operator decides.
type DeviceSpec struct {
	Tags    map[string]string
	Profile string // empty means no profile
}

// Token is a credential. The ledger stores only the SHA-256 of its secret.
type Token struct {
	ID        int64
	Name      string
	Device    string   // the device that the token belongs to; empty for the token of an operator
	Role      string   // of an operator token: viewer, operator, admin, verifier or caller
	Pools     []string // patterns of the pools that a caller may use; nil means no pools
	LimitSets []string // patterns of the limit sets that a caller may use; nil means none
	CreatedAt time.Time
	ExpiresAt *time.Time
	LastUsed  *time.Time // only in lists of operator tokens, accurate to one minute; nil means never
	Requests  int64      // only in lists of operator tokens: number of requests with the token, up to LastUsed
}

// Event is one entry of the activity and audit log.
type Event struct {
	ID        int64
	At        time.Time
	Kind      string // e.g. task.granted, task.succeeded, pool.changed
	Actor     string // name of an operator token, id of a device, or a name such as "reaper"
	ActorKind ActorKind
	Pool      string
	Batch     int64
	Task      int64
	Device    string
	Token     int64
	Detail    string
	BatchName string // name of the batch now; only Events sets it
}

// Limits of the merged attributes of a device: number of members and size in bytes.
const (
	maxAttributes     = 64
	maxAttributesSize = 8 << 10
)

const deviceColumns = `d.id, d.blocked, d.own_token, EXISTS (
		SELECT 1 FROM tokens k WHERE k.device = d.id AND k.device <> '' AND ` + validToken + `),
	d.tags, d.profile, d.attributes, d.created_at, d.last_seen, d.quiet_until, d.noisy_at, d.reach, d.registered_by,
	d.blocked_by, d.blocked_at, d.block_reason, d.wire`

// deviceScanDest returns pointers to the fields of device for deviceColumns, which are NULL if the device is not registered.
func deviceScanDest(device *Device) (scanDest []any) {
	return []any{
		&device.ID, &device.Blocked, &device.OwnToken, &device.HasToken, &device.Tags, &device.Profile, &device.Attributes, &device.CreatedAt, &device.LastSeen, &device.QuietUntil,
		&device.NoisyAt, &device.Reach, &device.RegisteredBy, &device.BlockedBy, &device.BlockedAt, &device.BlockReason, &device.Wire,
	}
}

func (s session) deviceByID(ctx context.Context, id string) (Device, error) {
	return queryOne(ctx, s, deviceScanDest, `SELECT `+deviceColumns+` FROM devices d WHERE d.id = $1`, id)
}

// Device returns one device, or ErrNotFound.
func (s devices) Device(ctx context.Context, id string) (Device, error) {
	return s.readSession().deviceByID(ctx, id)
}

// DeviceFilter selects devices. A field with its zero value does not restrict the selection.
type DeviceFilter struct {
	Tags    map[string]string // the device has all these tags
	Profile string
	Blocked *bool
	Noisy   *bool  // the device was recorded as noisy within NoisyFor
	Prefix  string // prefix of the ids
	After   string // only devices with id > After
	Limit   int    // default 100, at most 1000

	// No index has these fields, so only searches use them (SearchDevices, SilentDevices, DevicesWithIDPart), not Devices.
	RegisteredBy string
	CreatedSince time.Time // only devices that were registered at this time or later
}

// Devices returns the devices that match filter, in ascending order of ids.
func (s devices) Devices(ctx context.Context, filter DeviceFilter) (found []Device, err error) {
	q := query{text: `SELECT ` + deviceColumns + ` FROM devices d`}
	if err := filter.addConditions(&q); err != nil {
		return nil, err
	}
	text, args := q.build(" ORDER BY d.id", filter.Limit)
	err = s.readForDeviceFilter(ctx, filter, func(in session) error {
		found, err = collect(ctx, in, deviceScanDest, text, args...)
		return err
	})
	return found, err
}

// readForDeviceFilter runs read with a session in which Postgres plans each statement for its arguments. If filter has tags, the session can use
// the index of tags.
func (s devices) readForDeviceFilter(ctx context.Context, filter DeviceFilter, read func(session) error) error {
	if len(filter.Tags) == 0 {
		return read(s.customPlanSession())
	}
	return s.withSnapshotSession(ctx, func(tx session) error {
		if err := tx.enableTagIndex(ctx); err != nil {
			return err
		}
		return read(tx.unprepared())
	})
}

// enableTagIndex lets the transaction use the index of tags. Postgres reads this index only by bitmap scans, which addSettingsToDSN disables.
func (s session) enableTagIndex(ctx context.Context) error {
	if s.tagIndexSQL == "" {
		return nil
	}
	_, err := s.exec(ctx, s.tagIndexSQL)
	return err
}

func (f DeviceFilter) addConditions(q *query) error {
	if len(f.Tags) > 0 {
		tags, err := tagsJSON(f.Tags)
		if err != nil {
			return err
		}
		q.where("{tagged %s}", tags) // must be the first condition: {tagged $1} and {tagged $3} contain the number of its argument
	}
	whereIfSet(q, "d.profile = %s", f.Profile)
	q.where("d.id > %s", f.After)
	if f.Prefix != "" { // ids are compared byte by byte, and each of their characters is lower than ~
		q.where("d.id >= %s", f.Prefix)
		q.where("d.id < %s", f.Prefix+"~")
	}
	if f.Blocked != nil {
		q.where("d.blocked = %s", *f.Blocked)
	}
	f.addNoisyCondition(q)
	return nil
}

// addUnindexedConditions adds the conditions on columns without an index to q. q must select from the columns that searchDevices reads.
func (f DeviceFilter) addUnindexedConditions(q *query) {
	whereIfSet(q, "registered_by = %s", f.RegisteredBy)
	q.whereTimeBetween("created_at", f.CreatedSince, time.Time{})
}

// DevicesByID returns the devices in ids that are registered, in ascending order of ids.
func (s devices) DevicesByID(ctx context.Context, ids []string) ([]Device, error) {
	return collect(ctx, s.readSession(), deviceScanDest,
		`SELECT `+deviceColumns+` FROM {names} JOIN devices d ON d.id = names.name ORDER BY d.id`, namesToJSONArray(ids))
}

// CreateDevice registers a device with its settings and a token with the SHA-256 tokenHash. setAccount gives the secret to the account of the
// device at the MQTT broker. Errors: ErrExists, ErrUnknownProfile. An idempotency key (WithOnce) makes it take effect once.
func (s devices) CreateDevice(ctx context.Context, actor, id string, spec DeviceSpec, tokenHash []byte, setAccount SetAccount) (Device, error) {
	leave, err := s.beginOnce(OnceFrom(ctx))
	defer leave()
	if err != nil {
		return Device{}, err
	}
	var d Device
	err = s.write(ctx, func(tx session) error {
		err := tx.runOnce(ctx, &d, func() (err error) {
			d, err = tx.createDevice(ctx, actor, id, spec, tokenHash)
			return err
		})
		if once := OnceFrom(ctx); err != nil || once != nil && once.Replayed {
			return err
		}
		return tx.setBrokerAccount(ctx, id, setAccount)
	})
	return d, err
}

// createDevice registers the device deviceID with a token and returns the device.
func (s session) createDevice(ctx context.Context, actor, deviceID string, spec DeviceSpec, tokenHash []byte) (Device, error) {
	created, err := s.registerDevice(ctx, actor, deviceID, spec)
	if err != nil {
		return Device{}, err
	}
	if !created {
		return Device{}, fmt.Errorf("device %s: %w", deviceID, ErrExists)
	}
	if _, err := s.insertToken(ctx, Token{Device: deviceID}, tokenHash); err != nil {
		return Device{}, err
	}
	return s.deviceByID(ctx, deviceID)
}

// MergeAttributes applies a merge patch (RFC 7396) to the attributes of the device. A patch without effect writes nothing. Errors:
// ErrNotFound, ErrTooLarge (more than 64 members or 8 KiB), and an error if patch is not a JSON object.
func (s devices) MergeAttributes(ctx context.Context, id string, patch json.RawMessage) error {
	return s.write(ctx, func(tx session) error {
		var old json.RawMessage
		if err := tx.scanRow(ctx, []any{&old}, `SELECT attributes FROM devices WHERE id = $1 FOR UPDATE`, id); err != nil {
			return err
		}
		merged, changed, err := mergeAttributes(old, patch)
		if err != nil || !changed {
			return err
		}
		_, err = tx.exec(ctx, `UPDATE devices SET attributes = $2::json WHERE id = $1`, id, string(merged))
		return err
	})
}

// LastReport is the last report of a device.
type LastReport struct {
	At    time.Time
	Reach Reach  // how the device could be notified after this report
	Wire  string // the wire of the report; empty means that the stored wire stays
	// The silence of the device is measured from QuietUntil. It is one report period before the next report of the device is due, or At if that
	// is later.
	QuietUntil time.Time
}

// maxSeenError is the largest error in the time of a report. A replica computes the ledger's time, and can be too late by the duration of
// one reading of the ledger's clock.
const maxSeenError = 2 * time.Second

// TouchDevices stores the latest report of each device: its time, its quiet time, the protocol (wire), and how the device can be notified
// (reach). It never moves a last-seen time back, and ignores unknown devices. If two reports are less than maxSeenError apart, their order is
// unclear. Then it keeps a reach other than ReachNone, because a waiting device with ReachNone would be offered no task. If the stored time is
// in the future, the ledger's clock was set back, and the new reach is stored.
func (s devices) TouchDevices(ctx context.Context, reportByDevice map[string]LastReport) error {
	if len(reportByDevice) == 0 {
		return nil
	}
	type row struct {
		Device string `json:"device"`
		AtMS   int64  `json:"at_ms"`
		Quiet  int64  `json:"quiet_ms"`
		Reach  Reach  `json:"reach"`
		Wire   string `json:"wire"`
	}
	rows := make([]row, 0, len(reportByDevice))
	for _, id := range slices.Sorted(maps.Keys(reportByDevice)) {
		report := reportByDevice[id]
		at := report.At.UnixMilli()
		rows = append(rows, row{id, at, max(at, report.QuietUntil.UnixMilli()), report.Reach, report.Wire})
	}
	return s.write(ctx, func(tx session) error {
		const (
			later   = `(d.last_seen IS NULL OR d.last_seen < {epoch} + seen.at_ms * {ms})`
			unclear = `(seen.reach <> 0 AND d.last_seen < {epoch} + (seen.at_ms + $2) * {ms} OR d.last_seen > {now} + $2 * {ms})`
		)
		_, err := tx.exec(ctx, `
			UPDATE devices AS d SET reach = seen.reach, wire = CASE WHEN seen.wire = '' THEN d.wire ELSE seen.wire END,
				last_seen = CASE WHEN `+later+` THEN {epoch} + seen.at_ms * {ms} ELSE d.last_seen END,
				quiet_until = CASE WHEN `+later+` THEN {epoch} + seen.quiet_ms * {ms} ELSE d.quiet_until END
			FROM {seen} WHERE d.id = seen.device AND (`+later+` OR d.reach <> seen.reach AND `+unclear+`)`, rowsToJSONArray(rows), maxSeenError.Milliseconds())
		return err
	})
}

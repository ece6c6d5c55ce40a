package store

import (
	"context"
	"maps"
	"slices"
)

// The names of registrants that are not operators. No operator token can have one of these names.
const (
	FleetTokenPrefix  = "fleet:"  // a fleet token: followed by the first digits of its hash
	SessionRegistrant = "session" // a session at an MQTT broker
)

// Registration is a request to register a device because it has sent a report.
type Registration struct {
	Device     string `json:"name"`
	Registrant string `json:"registrant"` // the fleet token or the session with which the device reported
	Detail     string `json:"detail"`     // detail of the event
	Blocked    bool   `json:"blocked"`    // the device is blocked until an operator unblocks it
}

// Registered is a registered device. IsNew reports whether the call registered it.
type Registered struct {
	Device

	IsNew bool
}

// RegisterDevices returns the devices of requests in the same order, and registers each missing device, all or none. A returned ID is empty
// if the registration is refused (DeviceDeletion.Refuse) or the device is just being deleted.
func (s devices) RegisterDevices(ctx context.Context, requests ...Registration) (registered []Registered, err error) {
	return inTx(ctx, s.connection, func(tx session) ([]Registered, error) { return tx.registerMissing(ctx, requests) })
}

type newcomerRow struct {
	N int `json:"n"`
	Registration
}

// newcomerRows returns one row for each device in requests, in the order of ids.
func newcomerRows(requests []Registration) []newcomerRow {
	byID := make(map[string]Registration, len(requests))
	for _, r := range requests {
		byID[r.Device] = r
	}
	rows := make([]newcomerRow, 0, len(byID))
	// The rows are sorted, so that two concurrent calls lock them in the same order and cannot deadlock.
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		rows = append(rows, newcomerRow{len(rows), byID[id]})
	}
	return rows
}

// registerMissing registers the missing devices and returns all devices of requests, in their order.
func (s session) registerMissing(ctx context.Context, requests []Registration) ([]Registered, error) {
	rows := newcomerRows(requests)
	created, err := collect(ctx, s, singleColumn[string], `
		INSERT INTO devices (id, tags, attributes, created_at, registered_by, blocked)
		SELECT name, '{}', '{}', {now}, registrant, blocked FROM {newcomers}
		WHERE NOT EXISTS (SELECT 1 FROM deleted_devices g WHERE g.id = newcomers.name AND g.refused)
		ORDER BY n ON CONFLICT DO NOTHING RETURNING id`, rowsToJSONArray(rows))
	if err != nil {
		return nil, err
	}
	if len(created) > 0 {
		isOld := func(r newcomerRow) bool { return !slices.Contains(created, r.Device) }
		if err := s.finishRegistration(ctx, rowsToJSONArray(slices.DeleteFunc(slices.Clone(rows), isOld)), step{"recording", `
			INSERT INTO events (at, kind, actor, actor_kind, device, detail)
			SELECT {now}, 'device.created', registrant, 'registrant', name, detail FROM {newcomers} WHERE TRUE ORDER BY n`}); err != nil {
			return nil, err
		}
	}
	found, err := collect(ctx, s, deviceScanDest, `SELECT `+deviceColumns+` FROM {newcomers} JOIN devices d ON d.id = newcomers.name`, rowsToJSONArray(rows))
	if err != nil {
		return nil, err
	}
	return registeredInOrder(requests, found, created), nil
}

// registeredInOrder returns the devices of the list found, in the order of requests. createdIDs has the ids of the devices that were just
// registered.
func registeredInOrder(requests []Registration, found []Device, createdIDs []string) []Registered {
	byID := make(map[string]Registered, len(found))
	for _, d := range found {
		byID[d.ID] = Registered{d, slices.Contains(createdIDs, d.ID)}
	}
	registered := make([]Registered, len(requests))
	for i, r := range requests {
		registered[i] = byID[r.Device]
		byID[r.Device] = Registered{Device: registered[i].Device} // if requests has a device twice, only its first entry is new
	}
	return registered
}

// registerDevice registers the device deviceID on behalf of the operator actor. If the device is registered already, nothing changes and
// created is false.
func (s session) registerDevice(ctx context.Context, actor, deviceID string, spec DeviceSpec) (created bool, err error) {
	text, err := tagsJSON(spec.Tags)
	if err != nil {
		return false, err
	}
	if err := s.lockProfile(ctx, spec.Profile); err != nil {
		return false, err
	}
	n, err := s.exec(ctx, `
		INSERT INTO devices (id, tags, attributes, created_at, profile, registered_by)
		VALUES ($1, $2, '{}', {now}, nullif($3, ''), $4) ON CONFLICT DO NOTHING`, deviceID, text, spec.Profile, actor)
	if err != nil || n == 0 {
		return false, err
	}
	if err := s.finishRegistration(ctx, namesToJSONArray([]string{deviceID})); err != nil {
		return false, err
	}
	return true, s.recordEvent(ctx, Event{Kind: "device.created", Actor: actor, Device: deviceID})
}

// finishRegistration ends the registration of new devices. It blocks a device that was blocked when it was deleted, and runs steps.
// rowsJSON is the JSON input {newcomers}, of which only n and name are needed. The caller must insert the devices first: the INSERT may
// wait for a concurrent deletion, and only a later statement reads what the deletion wrote.
func (s session) finishRegistration(ctx context.Context, rowsJSON string, steps ...step) error {
	return s.runSteps(ctx, "newcomers", rowsJSON, append([]step{
		{"blocking", `
			UPDATE devices AS d SET blocked = TRUE, blocked_by = g.blocked_by, blocked_at = g.blocked_at, block_reason = g.block_reason
			FROM {newcomers} JOIN deleted_devices g ON g.id = newcomers.name WHERE d.id = newcomers.name AND g.blocked`},
		{"bringing back", `DELETE FROM deleted_devices WHERE id IN (SELECT name FROM {newcomers})`},
	}, steps...))
}

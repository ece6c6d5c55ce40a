package store

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// DeviceSearchLimit is the recommended number of devices for one call of SearchDevices, SilentDevices or DevicesWithIDPart to search.
const DeviceSearchLimit = searchLimit

// DeviceSearchPage is the result of SearchDevices, SilentDevices and DevicesWithIDPart.
type DeviceSearchPage struct {
	Devices       []Device // in ascending order of ids, up to the limit of the filter
	ContinueAfter string   // id of the last device searched, if fewer devices than the limit were found and more may follow
}

// SearchDevices searches at most maxSearched devices, in ascending order of ids, for devices that match filter.
func (s devices) SearchDevices(ctx context.Context, filter DeviceFilter, maxSearched int) (DeviceSearchPage, error) {
	return s.searchDevices(ctx, filter, "", nil, maxSearched)
}

// SilentDevices searches at most maxSearched of the devices that match filter, in ascending order of ids. It returns the devices that never
// reported, even if they were just registered, or that have been silent (LastReport.QuietUntil) for longer than silentFor. No index has
// quiet_until, because each report would have to write to it.
func (s devices) SilentDevices(ctx context.Context, filter DeviceFilter, silentFor time.Duration, maxSearched int) (DeviceSearchPage, error) {
	return s.searchDevices(ctx, filter, `(quiet_until IS NULL OR quiet_until < {now} - %s * {ms})`, silentFor.Milliseconds(), maxSearched)
}

// CountReporting counts the devices that have reported within a duration (within) before now. It reads all devices.
func (s devices) CountReporting(ctx context.Context, within time.Duration) (deviceCount int, err error) {
	defer wrapError(&err, "counting the devices that report")
	return queryOne(ctx, s.readSession(), singleColumn[int], `SELECT count(*) FROM devices WHERE last_seen > {now} - $1 * {ms}`, within.Milliseconds())
}

// searchDevices searches the next maxSearched devices of filter, by ids, and returns the devices that satisfy condSQL: an SQL condition on
// id and quiet_until in which condValue replaces %s. An empty condSQL is always true.
func (s devices) searchDevices(ctx context.Context, filter DeviceFilter, condSQL string, condValue any, maxSearched int) (DeviceSearchPage, error) {
	q := query{text: `SELECT d.id, d.quiet_until, d.registered_by, d.created_at FROM devices d`}
	if err := filter.addConditions(&q); err != nil {
		return DeviceSearchPage{}, err
	}
	text := q.textWithoutLimit() + " ORDER BY d.id LIMIT " + q.addArg(maxSearched)
	sift := query{args: q.args} // q selects the devices to search; the conditions of sift then select the devices to return
	filter.addUnindexedConditions(&sift)
	if condSQL != "" {
		sift.where(condSQL, condValue)
	}
	q.args, condSQL = sift.args, strings.Join(append(sift.conds, "1 = 1"), " AND ")
	limit := q.addArg(clampLimit(filter.Limit))
	type reading struct {
		looked int
		last   string
		device Device
	}
	var rows []reading
	err := s.readForDeviceFilter(ctx, filter, func(in session) (err error) {
		rows, err = collect(ctx, in, func(r *reading) []any {
			return append([]any{&r.looked, &r.last}, deviceScanDest(&r.device)...)
		}, `
		WITH sifted AS (
			SELECT id FROM (`+text+`) AS looked WHERE `+condSQL+` ORDER BY id LIMIT `+limit+`)
		SELECT every.n, every.last, `+deviceColumns+`
		FROM (SELECT count(*) AS n, max(id) AS last FROM (`+text+`) AS looked WHERE (SELECT count(*) FROM sifted) < `+limit+`) AS every
			LEFT JOIN sifted ON 1 = 1 LEFT JOIN devices d ON d.id = sifted.id
		ORDER BY d.id`, q.args...)
		return err
	})
	if err != nil {
		return DeviceSearchPage{}, fmt.Errorf("searching devices: %w", err)
	}
	var found DeviceSearchPage
	if rows[0].looked == maxSearched {
		found.ContinueAfter = rows[0].last
	}
	for _, r := range rows {
		if r.device.ID != "" {
			found.Devices = append(found.Devices, r.device)
		}
	}
	return found, nil
}

// DevicesWithIDPart searches at most maxSearched of the devices that match filter, in ascending order of ids, for ids that contain idPart
// in any case.
func (s devices) DevicesWithIDPart(ctx context.Context, filter DeviceFilter, idPart string, maxSearched int) (DeviceSearchPage, error) {
	return s.searchDevices(ctx, filter, likeSQL("id", "%s"), likePattern(idPart), maxSearched)
}

// keySearchLimit is the number of devices, lowest ids first, in which DevicesWithTag and DevicesWithAttribute search for a name.
const keySearchLimit = 1000

// DevicesWithTag searches keySearchLimit devices for a tag with this name, for warnings about policies. It returns how many devices it
// searched, and whether one has the tag.
func (s devices) DevicesWithTag(ctx context.Context, name string) (searched int, found bool, err error) {
	return s.searchJSONKeys(ctx, "tags", "{keys of tags}", name, name)
}

// DevicesWithAttribute searches keySearchLimit devices for an attribute with the name path (names joined with dots) or firstName, the first
// name of path. It returns how many devices it searched, and whether one has the attribute.
func (s devices) DevicesWithAttribute(ctx context.Context, path, firstName string) (searched int, found bool, err error) {
	return s.searchJSONKeys(ctx, "attributes", "{keys of attributes}", path, firstName)
}

// searchJSONKeys searches the JSON objects in jsonColumn (tags or attributes) of keySearchLimit devices for a key that equals keyName or
// altKeyName. keysWord is the word (see dialect) that selects the keys.
func (s devices) searchJSONKeys(ctx context.Context, jsonColumn, keysWord, keyName, altKeyName string) (searched int, found bool, err error) {
	err = s.readSession().scanRow(ctx, []any{&searched, &found}, `
		SELECT count(*), count(CASE WHEN EXISTS (SELECT 1 FROM `+keysWord+` WHERE k.key = $1 OR k.key = $2) THEN 1 END) > 0
		FROM (SELECT `+jsonColumn+` FROM devices ORDER BY id LIMIT $3) AS looked`, keyName, altKeyName, keySearchLimit)
	return searched, found, err
}

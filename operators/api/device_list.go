package api

import (
	"context"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// RecentDevices is the list of the devices that reported most recently. The product uses *seen.List.
type RecentDevices interface {
	Newest(ctx context.Context) ([]seen.Sighting, error)
}

type deviceQuery struct {
	Page
	operators.DeviceFilter
}

// filter returns the query as a filter of the ledger, without SilentMS and IDPart, which searchDevices reads.
func (q *deviceQuery) filter() (store.DeviceFilter, error) {
	f := store.DeviceFilter{
		After: q.after, Limit: q.Size, Prefix: q.Prefix, Profile: q.Profile, Tags: map[string]string{}, RegisteredBy: q.RegisteredBy, CreatedSince: q.CreatedSince,
	}
	for _, tag := range q.Tags {
		name, value, ok := strings.Cut(tag, ":")
		if other, twice := f.Tags[name]; !ok || twice && other != value {
			return f, invalidProblem("tag: %q must be name:value, with each name once", tag)
		}
		f.Tags[name] = value
	}
	f.Blocked, f.Noisy = optionalBool(q.Blocked), optionalBool(q.Noisy)
	return f, nil
}

// optionalBool returns the value of text, which is true or false, or nil if text is empty.
func optionalBool(text string) *bool {
	if text == "" {
		return nil
	}
	return new(text == "true")
}

// listRecent returns the devices that reported most recently. It omits devices that were deleted since, and reads further until the page is
// full.
func (d *deviceOperations) listRecent(ctx context.Context, in *deviceQuery) (page listPage[operators.Device], err error) {
	others := in.DeviceFilter
	if others.Recent = 0; !others.IsEmpty() || in.Token != "" {
		return page, invalidProblem("recent: not together with page_token, %s", deviceFilters)
	}
	sightings, err := d.recentDevices.Newest(ctx)
	if err != nil {
		return page, err
	}
	found, _, err := readInParts(in.Recent, func(_ *store.Device, limit int) (part []store.Device, err error) {
		for len(part) < limit && len(sightings) > 0 && err == nil {
			chunk := sightings[:min(limit-len(part), len(sightings))]
			sightings = sightings[len(chunk):]
			var registered []store.Device
			registered, err = d.ledger.DevicesByID(ctx, deviceIDs(chunk))
			part = append(part, orderDevicesBySighting(chunk, registered)...)
		}
		return part, err
	}, approximateDeviceBytes)
	return newPage(found, false, toAPIDevice, nil), err
}

func deviceIDs(sightings []seen.Sighting) []string {
	ids := make([]string, len(sightings))
	for i, s := range sightings {
		ids[i] = s.Device
	}
	return ids
}

// orderDevicesBySighting returns the devices of sightings (devices and the times of their last reports) in the order of sightings. stored
// has the devices that are registered. Other devices are left out. A sighting that is older than its device is left out, too, because the
// device was deleted and created again.
func orderDevicesBySighting(sightings []seen.Sighting, stored []store.Device) (shown []store.Device) {
	registered := make(map[string]store.Device, len(stored))
	for _, d := range stored {
		registered[d.ID] = d
	}
	for _, s := range sightings {
		if d, ok := registered[s.Device]; ok && !s.At.Before(d.CreatedAt.Truncate(time.Millisecond)) {
			d.LastSeen = &s.At
			if d.QuietUntil == nil || d.QuietUntil.Before(s.At) {
				d.QuietUntil = &s.At
			}
			shown = append(shown, d)
		}
	}
	return shown
}

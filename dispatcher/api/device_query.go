package api

import (
	"context"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// Recent is the list of the devices seen last; *seen.List.
type Recent interface {
	Newest(ctx context.Context) ([]seen.Sighting, error)
}

type deviceQuery struct {
	Page
	operators.DeviceFilter
}

// filter reads the query.
func (q *deviceQuery) filter() (store.DeviceFilter, error) {
	after, err := q.afterName()
	if err != nil {
		return store.DeviceFilter{}, err
	}
	f := store.DeviceFilter{After: after, Limit: q.Size, Prefix: q.Prefix, Profile: q.Profile, Tags: map[string]string{}}
	for _, tag := range q.Tags {
		name, value, ok := strings.Cut(tag, ":")
		if other, twice := f.Tags[name]; !ok || twice && other != value {
			return f, invalid("tag: %q: name:value, and each name once", tag)
		}
		f.Tags[name] = value
	}
	if q.Blocked != "" {
		blocked := q.Blocked == "true"
		f.Blocked = &blocked
	}
	return f, nil
}

// recent goes through all that is remembered: some may have been deleted.
func (d *registry) recent(ctx context.Context, in *deviceQuery) (page pageOf[operators.Device], err error) {
	if len(in.Tags) > 0 || in.Profile != "" || in.Blocked != "" || in.Prefix != "" || in.Token != "" {
		return page, invalid("recent: not with tag, profile, blocked, prefix or page_token")
	}
	seen, err := d.seen.Newest(ctx)
	if err != nil {
		return page, err
	}
	found, _, err := inParts(in.Recent, func(_ *store.Device, limit int) (part []store.Device, err error) {
		for len(part) < limit && len(seen) > 0 && err == nil {
			some := seen[:min(limit-len(part), len(seen))]
			seen = seen[len(some):]
			var registered []store.Device
			registered, err = d.ledger.DevicesOf(ctx, devicesOf(some))
			part = append(part, latest(some, registered)...)
		}
		return part, err
	}, weighDevice)
	return showPage(found, false, showDevice, nil), err
}

func devicesOf(seen []seen.Sighting) []string {
	ids := make([]string, len(seen))
	for i, s := range seen {
		ids[i] = s.Device
	}
	return ids
}

// latest joins what was seen with what is registered. A device that was made
// anew since it was seen was not seen.
func latest(seen []seen.Sighting, found []store.Device) (shown []store.Device) {
	registered := make(map[string]store.Device, len(found))
	for _, d := range found {
		registered[d.ID] = d
	}
	for _, s := range seen {
		if d, ok := registered[s.Device]; ok && !s.At.Before(d.CreatedAt.Truncate(time.Millisecond)) {
			d.LastSeen = &s.At
			shown = append(shown, d)
		}
	}
	return shown
}

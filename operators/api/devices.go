package api

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type deviceStore interface {
	Device(ctx context.Context, id string) (store.Device, error)
	Devices(ctx context.Context, f store.DeviceFilter) ([]store.Device, error)
	Silent(ctx context.Context, f store.DeviceFilter, since time.Duration, looked int) (store.Silence, error)
	DevicesWith(ctx context.Context, f store.DeviceFilter, part string, looked int) (store.Silence, error)
	DevicesOf(ctx context.Context, ids []string) ([]store.Device, error)
	ChangeDevice(ctx context.Context, actor, id string, change func(*store.DeviceSpec) error) (store.Device, error)
	ChangeDevices(ctx context.Context, actor string, ids []string, dry bool, change store.DeviceChange) (int, error)
}

// DevicePath is the path parameter {id}: the id of a device.
type DevicePath struct {
	ID devices.ID `path:"id"`
}

// checkName refuses an invalid device id.
func (d DevicePath) checkName() error {
	_, err := devices.ParseID(string(d.ID))
	return err
}

// registry has the operations on devices.
type registry struct {
	ledger      deviceStore
	credentials *credentials.Registry
	seen        Recent
	mark        func(ctx context.Context, device devices.ID) *decision.Mark
	limits      Limits
	imports     *fair.Shares
}

func (d *registry) register(r *routes) {
	create := creating(operation("POST", "/v1/devices", "createDevice", "Create a device and its token, or many", roleOperator, 201))
	create.Middlewares = r.steps(d.importing)
	describeImport(&create)
	register(r, create, d.create)
	registerList(r, operation("GET", "/v1/devices", "listDevices", "List devices by id", roleViewer, 200), d.list,
		func(p pageOf[operators.Device]) operators.DeviceList {
			return operators.DeviceList{Devices: p.entries, NextPageToken: p.next}
		})
	register(r, operation("GET", "/v1/devices/{id}", "getDevice", "Read a device", roleViewer, 200), d.get)
	register(r, operation("PATCH", "/v1/devices/{id}", "patchDevice", "Change a device's tags and its profile; absent ones stay, null takes one away", roleOperator, 200), d.patch)
	register(r, operation("POST", "/v1/devices/retag", "retagDevices", "Set tags of all devices that match, a page in each request, or take them away", roleOperator, 200), d.retag)
	register(r, operation("DELETE", "/v1/devices/{id}", "deleteDevice", "Delete a device and its tokens", roleOperator, 200), d.delete)
	register(r, operation("POST", "/v1/devices/{id}/token", "rotateToken", "Make a new token of a device", roleOperator, 200), d.rotateToken)
	register(r, operation("POST", "/v1/devices/{id}/block", "blockDevice", "Block a device: nothing is granted to it, and what it runs is to stop", roleOperator, 200), d.setBlocked(true))
	register(r, operation("POST", "/v1/devices/{id}/unblock", "unblockDevice", "Unblock a device", roleOperator, 200), d.setBlocked(false))
}

func (d *registry) create(ctx context.Context, in *struct{ Body operators.NewDevice }) (operators.DeviceCreated, error) {
	id, err := devices.ParseID(in.Body.ID)
	if err == nil {
		err = checkTags(in.Body.Tags)
	}
	if err != nil {
		return operators.DeviceCreated{}, err
	}
	made, token, err := d.credentials.CreateDevice(ctx, actor(ctx), id, store.DeviceSpec{Tags: in.Body.Tags, Profile: in.Body.Profile})
	return operators.DeviceCreated{Device: showDevice(made), Token: shownOnce(ctx, token)}, err
}

func (d *registry) list(ctx context.Context, in *deviceQuery) (page pageOf[operators.Device], err error) {
	if in.Recent > 0 {
		return d.recent(ctx, in)
	}
	filter, err := in.filter()
	if err != nil {
		return page, err
	}
	if in.Part != "" && in.Silent != 0 {
		return page, invalid("part: not with silent_for_ms")
	}
	beyond := ""
	found, more, err := inParts(in.Size, func(last *store.Device, limit int) ([]store.Device, error) {
		if filter.Limit = limit; last != nil {
			filter.After = last.ID
		}
		if in.Silent == 0 && in.Part == "" {
			return d.ledger.Devices(ctx, filter)
		}
		part, err := d.sifted(ctx, in, filter)
		beyond = part.Beyond
		return part.Devices, err
	}, weighDevice)
	page = showPage(found, more, showDevice, func(d store.Device) string { return d.ID })
	if !more && beyond != "" {
		page.next = pageToken(beyond)
	}
	return page, err
}

// sifted applies a filter for which there is no index, to a limited number of devices.
func (d *registry) sifted(ctx context.Context, in *deviceQuery, filter store.DeviceFilter) (store.Silence, error) {
	if in.Part != "" {
		return d.ledger.DevicesWith(ctx, filter, in.Part, store.SilentLooked)
	}
	return d.ledger.Silent(ctx, filter, milliseconds(in.Silent), store.SilentLooked)
}

func weighDevice(d store.Device) int { return len(d.Attributes) + 128*len(d.Tags) }

func (d *registry) get(ctx context.Context, in *DevicePath) (operators.Device, error) {
	found, err := d.ledger.Device(ctx, string(in.ID))
	shown := showDevice(found)
	if err == nil {
		shown.Mark = (*operators.Mark)(d.mark(ctx, in.ID))
	}
	return shown, err
}

func showDevice(d store.Device) operators.Device {
	tags := d.Tags
	if tags == nil {
		tags = map[string]string{}
	}
	attributes := d.Attributes
	if len(attributes) == 0 {
		attributes = json.RawMessage("{}")
	}
	return operators.Device{
		ID: d.ID, Blocked: d.Blocked, OwnToken: d.OwnToken, Tags: tags, Profile: d.Profile, Attributes: attributes,
		Created: stamp(d.CreatedAt), LastSeen: stampPointer(d.LastSeen),
	}
}

// Recent is the list of the devices that reported most recently. The product uses *seen.List.
type Recent interface {
	Newest(ctx context.Context) ([]seen.Sighting, error)
}

type deviceQuery struct {
	Page
	operators.DeviceFilter
}

// filter converts the query to a filter of the ledger.
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

// recent returns the registered devices among the devices that reported most recently. It reads on through the list, because
// some of its devices may have been deleted.
func (d *registry) recent(ctx context.Context, in *deviceQuery) (page pageOf[operators.Device], err error) {
	if len(in.Tags) > 0 || in.Profile != "" || in.Blocked != "" || in.Prefix != "" || in.Part != "" || in.Silent != 0 || in.Token != "" {
		return page, invalid("recent: not with tag, profile, blocked, prefix, part, silent_for_ms or page_token")
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

// latest joins sightings with registered devices. It drops the sighting of a device that was deleted and created again
// after it.
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

// Limits of a device's tags.
const (
	maxTags     = 64
	maxTagsSize = 8 << 10 // size in bytes, as JSON
	maxTagName  = 64      // length in bytes
)

type devicePatch struct {
	operators.DevicePatch

	Attributes json.RawMessage `json:"attributes,omitempty" hidden:"true"` // accepted only to return a better error than unknown field
}

func (d *registry) patch(ctx context.Context, in *struct {
	DevicePath
	Body devicePatch
},
) (operators.Device, error) {
	if present(in.Body.Attributes) != nil {
		return operators.Device{}, invalid("attributes: the device's own, which only it sets; tags are yours")
	}
	changed, err := d.ledger.ChangeDevice(ctx, actor(ctx), string(in.ID), func(spec *store.DeviceSpec) error {
		apply(in.Body.Profile, &spec.Profile, "")
		return in.Body.mergeTags(spec.Tags)
	})
	return showDevice(changed), err
}

func (p devicePatch) mergeTags(tags map[string]string) error {
	if !p.Tags.Said {
		return nil
	}
	if p.Tags.To == nil {
		clear(tags)
		return nil
	}
	for name, value := range *p.Tags.To {
		if value == nil {
			delete(tags, name)
			continue
		}
		tags[name] = *value
	}
	return checkTags(tags)
}

func checkTags(tags map[string]string) error {
	for name := range tags {
		if name == "" || len(name) > maxTagName || strings.Contains(name, ":") {
			return invalid("tags: %q: a name has 1-%d bytes and no colon", name, maxTagName)
		}
	}
	if len(tags) > maxTags {
		return invalid("tags: %d, at most %d", len(tags), maxTags)
	}
	if text, _ := json.Marshal(tags); len(text) > maxTagsSize { // strings always marshal
		return invalid("tags: %d bytes as JSON, at most %d", len(text), maxTagsSize)
	}
	return nil
}

// standardOverlap is the time for which older tokens stay valid after a rotation: the device has a day to receive the
// new token.
const standardOverlap = 24 * time.Hour

func (d *registry) rotateToken(ctx context.Context, in *struct {
	DevicePath
	Body *operators.Rotation
},
) (operators.TokenMade, error) {
	overlap := standardOverlap
	if in.Body != nil && in.Body.OverlapMS != nil {
		overlap = milliseconds(*in.Body.OverlapMS)
	}
	token, until, err := d.credentials.RotateToken(ctx, actor(ctx), in.ID, overlap)
	return operators.TokenMade{ID: string(in.ID), Token: token, OlderUntil: stamp(until)}, err
}

func (d *registry) setBlocked(blocked bool) func(context.Context, *DevicePath) (operators.Device, error) {
	return func(ctx context.Context, in *DevicePath) (operators.Device, error) {
		if err := d.credentials.SetBlocked(ctx, actor(ctx), in.ID, blocked); err != nil {
			return operators.Device{}, err
		}
		return d.get(ctx, in)
	}
}

func (d *registry) delete(ctx context.Context, in *struct {
	DevicePath
	Cancel bool `query:"cancel" doc:"Also with open tasks: those that wait are cancelled, what runs is asked to stop"`
},
) (operators.DeviceDeleted, error) {
	removed, err := d.credentials.DeleteDevice(ctx, actor(ctx), in.ID, in.Cancel)
	return operators.DeviceDeleted{ID: string(in.ID), Cancelled: removed.Cancelled, Stopping: removed.Stopping}, err
}

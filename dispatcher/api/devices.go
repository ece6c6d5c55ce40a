package api

import (
	"context"
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type deviceStore interface {
	Device(ctx context.Context, id string) (store.Device, error)
	Devices(ctx context.Context, f store.DeviceFilter) ([]store.Device, error)
	DevicesOf(ctx context.Context, ids []string) ([]store.Device, error)
	ChangeDevice(ctx context.Context, actor, id string, change func(*store.DeviceSpec) error) (store.Device, error)
}

func (a *API) registerRegistry(operations huma.API) {
	create := creating(operation("POST", "/v1/devices", "createDevice", "Create a device and its token, or many", roleOperator, 201))
	create.Middlewares = huma.Middlewares{a.importing(operations)}
	describeImport(&create)
	register(a, operations, create, a.createDevice)
	registerList(a, operations, operation("GET", "/v1/devices", "listDevices", "List devices by id", roleViewer, 200), listing[deviceQuery, operators.DeviceList, operators.Device]{
		handle: a.listDevices, page: (*deviceQuery).page,
		items: func(l operators.DeviceList) ([]operators.Device, string) { return l.Devices, l.NextPageToken },
	})
	register(a, operations, operation("GET", "/v1/devices/{id}", "getDevice", "Read a device", roleViewer, 200), a.getDevice)
	register(a, operations, operation("PATCH", "/v1/devices/{id}", "patchDevice", "Change a device's tags and its profile; absent ones stay, null takes one away", roleOperator, 200), a.patchDevice)
	register(a, operations, operation("DELETE", "/v1/devices/{id}", "deleteDevice", "Delete a device and its tokens", roleOperator, 200), a.deleteDevice)
	register(a, operations, operation("POST", "/v1/devices/{id}/token", "rotateToken", "Make a new token of a device", roleOperator, 200), a.rotateToken)
	register(a, operations, operation("POST", "/v1/devices/{id}/block", "blockDevice", "Block a device: nothing is granted to it, and what it runs is to stop", roleOperator, 200), a.setBlocked(true))
	register(a, operations, operation("POST", "/v1/devices/{id}/unblock", "unblockDevice", "Unblock a device", roleOperator, 200), a.setBlocked(false))
}

func (a *API) createDevice(ctx context.Context, in *struct{ Body operators.NewDevice }) (*body[operators.DeviceCreated], error) {
	id, err := devices.ParseID(in.Body.ID)
	if err != nil {
		return nil, err
	}
	if err := checkTags(in.Body.Tags); err != nil {
		return nil, err
	}
	d, token, err := a.options.Dispatcher.Devices.CreateDevice(ctx, actor(ctx), id, store.DeviceSpec{Tags: in.Body.Tags, Profile: in.Body.Profile})
	if err != nil {
		return nil, err
	}
	return &body[operators.DeviceCreated]{operators.DeviceCreated{Device: showDevice(d), Token: shownOnce(ctx, token)}}, nil
}

func (a *API) listDevices(ctx context.Context, in *deviceQuery) (*body[operators.DeviceList], error) {
	if in.Recent > 0 {
		return a.listRecent(ctx, in)
	}
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	found, more, err := inParts(in.Size, func(last *store.Device, limit int) ([]store.Device, error) {
		if filter.Limit = limit; last != nil {
			filter.After = last.ID
		}
		return a.store.Devices(ctx, filter)
	}, weighDevice)
	if err != nil {
		return nil, err
	}
	list := operators.DeviceList{Devices: make([]operators.Device, len(found))}
	for i, d := range found {
		list.Devices[i] = showDevice(d)
		list.NextPageToken = nextPage(more, d.ID)
	}
	return &body[operators.DeviceList]{list}, nil
}

func weighDevice(d store.Device) int { return len(d.Attributes) + 128*len(d.Tags) }

type deviceID struct {
	ID string `path:"id"`
}

func (a *API) getDevice(ctx context.Context, in *deviceID) (*body[operators.Device], error) {
	if _, err := devices.ParseID(in.ID); err != nil {
		return nil, err
	}
	d, err := a.store.Device(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &body[operators.Device]{showDevice(d)}, nil
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

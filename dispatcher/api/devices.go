package api

import (
	"context"
	"encoding/json"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type deviceStore interface {
	Device(ctx context.Context, id string) (store.Device, error)
	Devices(ctx context.Context, f store.DeviceFilter) ([]store.Device, error)
	DevicesOf(ctx context.Context, ids []string) ([]store.Device, error)
	ChangeDevice(ctx context.Context, actor, id string, change func(*store.DeviceSpec) error) (store.Device, error)
}

// DevicePath names a device.
type DevicePath struct {
	ID devices.ID `path:"id"`
}

// checkName refuses what no device can be called.
func (d DevicePath) checkName() error {
	_, err := devices.ParseID(string(d.ID))
	return err
}

// registry are the operations on devices.
type registry struct {
	ledger      deviceStore
	credentials *credentials.Registry
	seen        Recent
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
	found, more, err := inParts(in.Size, func(last *store.Device, limit int) ([]store.Device, error) {
		if filter.Limit = limit; last != nil {
			filter.After = last.ID
		}
		return d.ledger.Devices(ctx, filter)
	}, weighDevice)
	return showPage(found, more, showDevice, func(d store.Device) string { return d.ID }), err
}

func weighDevice(d store.Device) int { return len(d.Attributes) + 128*len(d.Tags) }

func (d *registry) get(ctx context.Context, in *DevicePath) (operators.Device, error) {
	found, err := d.ledger.Device(ctx, string(in.ID))
	return showDevice(found), err
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

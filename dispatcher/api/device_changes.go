package api

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
)

// standardOverlap is how long older tokens go on after a rotation: a day in
// which the device hears of the new one.
const standardOverlap = 24 * time.Hour

func (a *API) rotateToken(ctx context.Context, in *struct {
	ID   string `path:"id"`
	Body *operators.Rotation
},
) (*body[operators.TokenMade], error) {
	id, err := devices.ParseID(in.ID)
	if err != nil {
		return nil, err
	}
	overlap := standardOverlap
	if in.Body != nil && in.Body.OverlapMS != nil {
		overlap = time.Duration(*in.Body.OverlapMS) * time.Millisecond
	}
	token, until, err := a.options.Dispatcher.Devices.RotateToken(ctx, actor(ctx), id, overlap)
	if err != nil {
		return nil, err
	}
	return &body[operators.TokenMade]{operators.TokenMade{ID: in.ID, Token: token, OlderUntil: stamp(until)}}, nil
}

func (a *API) setBlocked(blocked bool) func(context.Context, *deviceID) (*body[operators.Device], error) {
	return func(ctx context.Context, in *deviceID) (*body[operators.Device], error) {
		id, err := devices.ParseID(in.ID)
		if err != nil {
			return nil, err
		}
		if err := a.options.Dispatcher.Devices.SetBlocked(ctx, actor(ctx), id, blocked); err != nil {
			return nil, err
		}
		return a.getDevice(ctx, in)
	}
}

func (a *API) deleteDevice(ctx context.Context, in *struct {
	ID     string `path:"id"`
	Cancel bool   `query:"cancel" doc:"Also with open tasks: those that wait are cancelled, what runs is asked to stop"`
},
) (*body[operators.DeviceDeleted], error) {
	id, err := devices.ParseID(in.ID)
	if err != nil {
		return nil, err
	}
	removed, err := a.options.Dispatcher.Devices.DeleteDevice(ctx, actor(ctx), id, in.Cancel)
	if err != nil {
		return nil, err
	}
	return &body[operators.DeviceDeleted]{operators.DeviceDeleted{ID: in.ID, Cancelled: removed.Cancelled, Stopping: removed.Stopping}}, nil
}

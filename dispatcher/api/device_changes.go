package api

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// standardOverlap is how long older tokens go on after a rotation: a day in
// which the device hears of the new one.
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

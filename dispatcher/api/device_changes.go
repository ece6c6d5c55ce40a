package api

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// standardOverlap is how long older tokens go on after a rotation: a day in
// which the device hears of the new one.
const standardOverlap = 24 * time.Hour

type tokenPost struct {
	OverlapMS *int64 `json:"overlap_ms,omitempty" nullable:"true" minimum:"0" maximum:"2592000000" doc:"How long older tokens go on; 0 ends them at once; default 24 h, at most 30 days"`
}

type tokenMade struct {
	ID         string    `json:"id"`
	Token      string    `json:"token" doc:"Shown once"`
	OlderUntil timestamp `json:"older_until" doc:"Older tokens of the device end then"`
}

type deviceDeleted struct {
	ID        string `json:"id"`
	Cancelled int    `json:"cancelled" doc:"Waiting tasks, cancelled with it"`
	Stopping  int    `json:"stopping" doc:"Tasks it ran: each keeps its slot until its lease ends"`
}

func (a *API) rotateToken(ctx context.Context, in *struct {
	ID   string `path:"id"`
	Body *tokenPost
},
) (*body[tokenMade], error) {
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
	return &body[tokenMade]{tokenMade{ID: in.ID, Token: token, OlderUntil: stamp(until)}}, nil
}

func (a *API) setBlocked(blocked bool) func(context.Context, *deviceID) (*body[DeviceBody], error) {
	return func(ctx context.Context, in *deviceID) (*body[DeviceBody], error) {
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
) (*body[deviceDeleted], error) {
	id, err := devices.ParseID(in.ID)
	if err != nil {
		return nil, err
	}
	removed, err := a.options.Dispatcher.Devices.DeleteDevice(ctx, actor(ctx), id, in.Cancel)
	if err != nil {
		return nil, err
	}
	return &body[deviceDeleted]{deviceDeleted{ID: in.ID, Cancelled: removed.Cancelled, Stopping: removed.Stopping}}, nil
}

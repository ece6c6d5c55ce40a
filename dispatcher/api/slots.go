package api

import (
	"context"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// waitingShown bounds the count of waiting devices: beyond it the number says
// only "many", and counting on would cost more than it tells.
const waitingShown = 1000

type slotsBody struct {
	Pool     string     `json:"pool"`
	Capacity int        `json:"capacity"`
	Held     int        `json:"held"`
	Reserved int        `json:"reserved" doc:"Kept for a device that was asked to report"`
	Waiting  int        `json:"waiting" doc:"Devices with a task that could start now and no slot; counted up to 1000"`
	Oldest   *timestamp `json:"oldest_pending_at" nullable:"true" doc:"When the batch of its oldest pending task was created; null: none is pending"`
	Slots    []slotBody `json:"slots" doc:"All of 0..capacity-1, and higher ones still held after the capacity was lowered"`
}

type slotBody struct {
	Slot       int        `json:"slot"`
	State      string     `json:"state" enum:"free,held,reserved"`
	Device     string     `json:"device,omitempty"`
	Task       int64      `json:"task,omitempty"`
	Token      int64      `json:"token,omitempty"`
	Since      *timestamp `json:"since,omitempty"`
	LeaseUntil *timestamp `json:"lease_until,omitempty" doc:"In the past: lapsed, about to be taken back"`
	Cancel     string     `json:"cancel,omitempty" doc:"Why the device is asked to stop"`
}

func (a *API) getSlots(ctx context.Context, in *PoolPath) (*body[slotsBody], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	o, err := a.store.Occupancy(ctx, in.Pool, waitingShown)
	if err != nil {
		return nil, err
	}
	return &body[slotsBody]{showSlots(o, a.options.Dispatcher.Upkeep.Reserved(ctx, in.Pool))}, nil
}

// showSlots shows a reserved place on each of the lowest free numbers: which
// number its device will get is not said before it does.
func showSlots(o store.Occupancy, reserved []string) slotsBody {
	reserved = reserved[:min(len(reserved), max(o.Pool.Capacity-len(o.Grants), 0))]
	shown := slotsBody{Pool: o.Pool.Name, Capacity: o.Pool.Capacity, Held: len(o.Grants), Reserved: len(reserved), Waiting: o.Waiting, Oldest: stampPointer(o.Oldest)}
	shown.Slots = make([]slotBody, 0, max(o.Pool.Capacity, len(o.Grants)))
	showFree := func(slot int) {
		one := slotBody{Slot: slot, State: "free"}
		if len(reserved) > 0 {
			one.State, one.Device, reserved = "reserved", reserved[0], reserved[1:]
		}
		shown.Slots = append(shown.Slots, one)
	}
	free := 0 // lowest number not shown yet
	for _, g := range o.Grants {
		for ; free < min(g.Slot, o.Pool.Capacity); free++ {
			showFree(free)
		}
		shown.Slots = append(shown.Slots, showHeld(g))
		free = max(free, g.Slot+1)
	}
	for ; free < o.Pool.Capacity; free++ {
		showFree(free)
	}
	return shown
}

func showHeld(g store.Grant) slotBody {
	since, until := stamp(g.GrantedAt), stamp(g.LeaseUntil)
	return slotBody{Slot: g.Slot, State: "held", Device: g.Device, Task: g.Task, Token: g.Token, Since: &since, LeaseUntil: &until, Cancel: g.CancelWhy}
}

package api

import (
	"context"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

func (p *pools) slots(ctx context.Context, in *PoolPath) (operators.Slots, error) {
	o, err := p.ledger.Occupancy(ctx, in.Pool, waitingShown)
	if err != nil {
		return operators.Slots{}, err
	}
	return showSlots(o, p.upkeep.Reserved(ctx, in.Pool)), nil
}

// showSlots shows a reserved slot on each of the lowest free numbers: which
// number its device will get is not said before it does.
func showSlots(o store.Occupancy, reserved []string) operators.Slots {
	reserved = reserved[:min(len(reserved), max(o.Pool.Capacity-len(o.Grants), 0))]
	shown := operators.Slots{Pool: o.Pool.Name, Capacity: o.Pool.Capacity, Held: len(o.Grants), Reserved: len(reserved), Waiting: o.Waiting, Oldest: stampPointer(o.Oldest)}
	shown.Slots = make([]operators.Slot, 0, max(o.Pool.Capacity, len(o.Grants)))
	showFree := func(slot int) {
		one := operators.Slot{Slot: slot, State: "free"}
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

func showHeld(g store.Grant) operators.Slot {
	since, until := stamp(g.GrantedAt), stamp(g.LeaseUntil)
	return operators.Slot{Slot: g.Slot, State: "held", Device: g.Device, Task: g.Task, Token: g.Token, Since: &since, LeaseUntil: &until, Cancel: g.CancelWhy}
}

package dispatcher

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Waker tells devices that are pushed to; *mqtt.Client.
type Waker interface {
	// Wake asks a device to report now: a place is kept for it for hold; 0: there
	// is other news. It never blocks, and may be lost.
	Wake(device devices.ID, hold time.Duration)
}

// reachOf is how the device of a report can be told of a place from now on.
func (d *Dispatcher) reachOf(h *handling) store.Reach {
	switch {
	case h.caller.Via == ViaBroker && d.config.Waker != nil:
		return store.ReachPush
	case h.park != nil:
		return store.ReachPark
	}
	return store.ReachNone
}

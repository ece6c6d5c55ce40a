// Package waiters tells devices of free slots: by a push, by the answer to a parked
// report (long poll), or not at all, if they poll.
//
// A slot that falls free is offered by the semaphore, in the same step, to a device that
// can be told. A Notifier carries offers out: it tells the device, or says that
// it cannot be told or cannot use the slot, and then the slot is offered to the next.
// Fill and FillAll look for what else can be handed on: offers that lapsed, and
// slots that nobody waits for, to which devices are searched that slept when the work came.
//
// Everything here is hints. An offer permits nothing: the device asks, and is decided
// about as any other. A loss costs time, and a pass of any replica mends it.
package waiters

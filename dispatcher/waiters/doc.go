// Package waiters notifies devices of free slots: by a push, by the answer to a parked report
// (long poll), or not at all, if they poll.
//
// In the step that frees a slot, the semaphore offers the slot to a device that can be notified.
// Slots frees it, Offers notifies the device or returns the offer, and then the semaphore offers
// the slot to the next waiter. Filler handles offers that lapsed, and finds devices for slots
// without waiters. Relay parks and wakes reports. Departures gives back the slots that are reserved
// for devices that left.
//
// A caller waits like a device: in this package, device also means the holder of a caller
// (store.IsCaller). Callers are notified by the answer to a parked report, never by a push.
//
// Offers, queues and messages are only hints. An offer is not a grant: the device must report, and
// its report is decided like any other report. A lost hint costs time, until a pass of any replica
// repairs the loss.
package waiters

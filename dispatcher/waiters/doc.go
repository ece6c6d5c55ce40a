// Package waiters notifies devices of free slots: by a push, by the answer to a parked report (long poll), or not at all, if they poll.
//
// Slots frees a slot. In the same step, the semaphore offers the slot to a device that can be notified. Offers notifies the device, or
// returns the offer; then the semaphore offers the slot to the next waiter. Filler handles offers that lapsed, and finds devices for free
// slots without a waiter. Relay parks and wakes reports. Departures gives back the slots of devices that left.
//
// In this package, device also means the holder of a caller (store.IsCaller), which is notified by the answer to a parked report.
//
// Offers, queues and messages are only hints: a notified device must report, and its report is decided like any other. If a hint is lost,
// the device waits longer, until a pass of any replica repairs the loss.
package waiters

// Package waiters notifies devices of free slots: by a push, by the answer to a parked report (long poll), or not at all, if they poll.
//
// In the step that frees a slot, the semaphore offers it to a device that can be notified. Slots frees it; Offers notifies the device or
// returns the offer, and then the semaphore offers the slot to the next waiter. Filler handles offers that lapsed, and finds devices for
// slots without waiters. Relay parks and wakes reports. Departures gives back the slots of devices that left.
//
// In this package, device also means the holder of a caller (store.IsCaller), which is notified by the answer to a parked report.
//
// Offers, queues and messages are only hints: the device must report, and its report is decided like any other. A lost hint costs time,
// until a pass of any replica repairs the loss.
package waiters

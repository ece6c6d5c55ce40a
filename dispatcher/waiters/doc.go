// Package waiters notifies devices of free slots: by a push, by the answer to a parked report
// (long poll), or not at all, if they poll.
//
// In the step that frees a slot, the semaphore offers the slot to a device that can be notified.
// Slots frees it, Offers notifies the device or returns the offer, and then the semaphore offers
// the slot to the next waiter. Filler takes up offers that lapsed, and finds devices for slots
// without waiters. Relay parks and wakes reports, Departures gives back what is kept for devices
// that left.
//
// All of this is hints. An offer permits nothing: the device reports, and is decided as any
// other. A lost hint costs time, and a pass of any replica makes up for it.
package waiters

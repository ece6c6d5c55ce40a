// Package waiters notifies devices of free slots, by a push or by the answer to a parked report (long poll). Devices that only poll are not
// notified.
//
// When Slots frees a slot, the semaphore offers the slot to a device that can be notified. Offers notifies the device. If the device cannot use
// the slot, Offers returns the offer, and the semaphore offers the slot to the next waiter. Filler handles lapsed offers, and finds devices for
// free slots that have no waiter. Relay parks and wakes reports. Departures gives back the slots of devices that left.
//
// Package slots decides which waiter gets an offer, and when an offer lapses. A device whose offer lapsed gets no other offer until it
// reports, or until Filler finds it with a newer or an urgent task. Each replica runs Filler.FillAllPools every 500 ms, as the pass "hand on"
// in internal/app/pass_list.go.
//
// A parked report is decided again only after a message (parked.WakeMessage). An operator's change sends no message, unless it leads to an
// offer or lets callers hold more slots.
//
// In this package, a device can also be the holder of a caller (store.IsCaller), which is notified by the answer to a parked report.
//
// Offers, queues and messages are only hints. A notified device must report, and its report is decided like any other report. If a hint is lost,
// the device waits longer, until a pass of any replica repairs the loss.
package waiters

// Package reach names the ways to notify a device of a slot. The ledger and the queues in Redis store these ways as numbers, so the numbers
// must not change.
package reach

// Reach is a way to notify a waiting device of a slot.
type Reach int

// The ways to notify a device.
const (
	None Reach = iota // the device polls: it cannot be notified
	Push              // the device is woken over MQTT
	Park              // a request of the device is parked at a replica
)

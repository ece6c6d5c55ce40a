// Package reach names the ways to tell a device of a slot. The ledger stores them and
// the semaphore offers by them, so their numbers stay as they are.
package reach

// Reach is how a device that waits can be told of a slot.
type Reach int

// The ways to tell a device.
const (
	None Reach = iota // it polls: nobody can
	Push              // it is woken, over MQTT
	Park              // its request is parked at a replica
)

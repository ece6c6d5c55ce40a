// Package simulator contains a simulated fleet and a simulated external system: the other side of the protocol, written from
// docs/protocol.md as firmware would be.
//
// It shares no code with the dispatcher, not even the codec, so that it is an independent check. External counts how many devices are
// inside at once, the devices obey the lease rule, and Run compares every acknowledged output with the device's journal, byte for byte.
package simulator

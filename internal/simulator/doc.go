// Package simulator contains a simulated fleet and a simulated external system: the other side of the protocol, written from
// docs/protocol.md as firmware would be. It shares no code with the dispatcher, not even the codec, so it is an independent check.
//
// Run simulates a fleet with tasks. The external system counts the devices that are inside at once, and each acknowledged output is compared
// with the journal of its device. Summary.Err returns the broken promises. RunIdle simulates a fleet that only reports.
package simulator

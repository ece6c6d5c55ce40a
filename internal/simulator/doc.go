// Package simulator contains a simulated fleet and a simulated external system. The fleet is written from docs/protocol.md as firmware would
// be. It does not share the codec of package devices, so it is an independent check. The only package of this module that it imports is
// operators, the client of the operators' API.
//
// Run simulates a fleet with tasks. The external system counts the devices that are inside at once, and each acknowledged output is compared
// with the journal of its device. Summary.Err returns the broken promises. RunIdle simulates a fleet that only reports. It has no Faults.
package simulator

// Package simulator contains a simulated fleet and a simulated external system: the other side of the protocol, written from
// docs/protocol.md as firmware would be.
//
// The devices share no code with the dispatcher, not even the codec, so that they are an independent check. External counts how many
// devices are inside at once. The devices obey the lease rule: a device uses the external system only until its lease has ended. Run
// compares every acknowledged output with the device's journal, byte for byte, and Summary.Err returns the broken promises.
//
// Run simulates a fleet with tasks and returns a Summary, which also has the time in which slots were empty (idle.go). RunIdle is another
// simulation: a fleet without tasks that only reports. It returns an IdleSummary.
package simulator

// Package simulator is a simulated fleet and a simulated external system: the
// other side of the wire, written from docs/protocol.md as firmware would be.
//
// It shares no code with the dispatcher, not even its codec, so that it is an
// independent check: External judges how many devices are inside at once, the
// devices keep to the lease rule, and Run compares every acknowledged output
// with what the device wrote down, byte for byte.
package simulator

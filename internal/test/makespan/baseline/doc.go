// Package baseline is report-and-hope, the way to share slots that the benchmark
// compares the dispatcher with: a counter in Redis that is raised up to a cap
// and lowered again, and devices that ask with their periodic reports and hope
// that the counter is below the cap just then.
//
// It speaks as much of the protocol as the simulated fleet needs, so that the
// same devices and the same external system measure both. It is written for
// the benchmark and promises nothing: its tasks are in memory, and a device
// that falls silent keeps its slot.
package baseline

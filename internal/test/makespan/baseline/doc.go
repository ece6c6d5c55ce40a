// Package baseline implements report-and-hope, the way to share slots with which the benchmark compares the dispatcher. A counter in Redis
// is incremented up to a cap and decremented again. Devices ask in their periodic reports, and hope that the counter is below the cap at
// that time.
//
// It implements the part of the protocol that the simulated fleet needs, so that the same devices and the same external system measure
// both. It exists only for the benchmark and promises nothing: its tasks are in memory, and a device that becomes silent keeps its slot.
package baseline

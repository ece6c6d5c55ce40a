// Package baseline implements a simple way to share slots, report-and-hope, with which the benchmark compares the
// dispatcher. A counter in Redis counts the used slots: a grant increments it up to a cap, and the end of a grant
// decrements it. A device asks for a slot only in its periodic reports, and gets one if the counter is below the
// cap at that moment.
//
// It implements only those parts of the protocol that the simulated fleet needs, so that both methods are measured
// with the same devices and the same external system. It exists only for the benchmark and promises nothing: its
// tasks are in memory, and a device that becomes silent keeps its slot.
package baseline

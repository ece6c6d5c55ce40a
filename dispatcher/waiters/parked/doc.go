// Package parked exchanges messages about parked reports (long poll) between replicas, over Redis. The messages say which report of a device
// is the newest at all replicas, and which reports must be woken. A message may be lost.
package parked

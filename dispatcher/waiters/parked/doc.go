// Package parked exchanges messages about parked reports (long poll) between replicas
// over Redis: which report of a device is the newest at all replicas, and which reports
// must be woken. Redis keeps a number per device for as long as its report may be parked,
// and delivers the messages. A message may be lost, and nothing in this package is
// authoritative.
package parked

// Package parked lets replicas tell each other of parked reports (long poll)
// over Redis: which report of a device is the newest anywhere, and which are to
// look again. Redis remembers a number per device for as long as its report may
// be parked, and passes messages on. A message may be lost, and nothing here is
// the truth about anything.
package parked

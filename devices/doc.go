// Package devices is the vocabulary of the wire between a field device and the
// dispatcher: device ids, reports, replies, their JSON form and their MQTT
// topics. It knows nothing of transports, slots or SQL.
//
// Decoding refuses whole what is unparsable or over a limit, and marks single
// bad entries so that they never spoil their neighbours.
package devices

// Package devices defines what a field device and the dispatcher exchange: device ids,
// reports, replies, their JSON form and their MQTT topics. It does not depend on
// transports, slots or SQL.
//
// The transports are the packages http, mqtt and hawkbit. Package line is a transport, in a test, as an example. Over MQTT the broker
// authenticates the devices. The broker is either package broker, the embedded broker, or mosquitto with the accounts that package dynsec
// maintains. Package check examines a real device.
//
// Decoding refuses a whole report that cannot be parsed or exceeds a limit. A single bad
// entry is only marked, so that it does not affect the other entries.
package devices

// Package devices defines what a field device and the dispatcher exchange: device ids, reports, replies, refusals, their JSON form and their
// MQTT topics. It imports neither a transport nor slots nor SQL. A bad entry of a report leaves the other entries valid.
//
// The transports are the packages http, mqtt and hawkbit. Package line is an example of a transport in a test. CONTRIBUTING.md lists the steps
// to add a transport, and a field of a report or reply. Over MQTT, the broker authenticates the devices: the embedded one (package broker), or
// mosquitto, for example with the accounts of package dynsec. Package check examines a real device.
package devices

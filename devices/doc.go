// Package devices defines what a field device and the dispatcher exchange: device ids, reports, replies, their JSON form and their MQTT
// topics. It does not depend on transports, slots or SQL.
//
// The transports are the packages http, mqtt and hawkbit. Package line is an example of a transport in a test. Over MQTT, the broker
// authenticates the devices. The broker is the embedded one (package broker), or mosquitto with the accounts of package dynsec. Package check
// examines a real device.
package devices

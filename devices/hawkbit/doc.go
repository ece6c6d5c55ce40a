// Package hawkbit is the transport of devices that speak the DDI (Direct Device Integration) of Eclipse hawkBit: swupdate,
// rauc-hawkbit-updater, Zephyr's client and others. They work without a change of their firmware. docs/hawkbit.md says what differs for
// such a device.
//
// The package makes no decisions: devices.Handler makes them. Each request of a device becomes one or two reports. A DDI client knows
// neither leases nor fencing tokens, so the ledger keeps the grant of each client under the number of an action, and each request renews
// the grant. The link to a task is sent only after the grant was found in force.
package hawkbit

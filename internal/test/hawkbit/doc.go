// Package hawkbit tests devices that speak hawkBit's DDI with a client that was not made for this project: swupdate, unmodified. An artifact
// server counts the open downloads, which are the devices inside the external system. Device simulates swupdate, for tests under load.
package hawkbit

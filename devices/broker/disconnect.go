package broker

import (
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/fleetslots/dispatcher/devices"
)

// Disconnect ends the sessions of a device that are open now, all of its client
// ids. Whether it may open another one is Options.Authenticate's to say.
func (b *Broker) Disconnect(device devices.ID) {
	for _, client := range b.server.Clients.GetAll() {
		if string(client.Properties.Username) == string(device) {
			client.Stop(packets.ErrAdministrativeAction)
		}
	}
}

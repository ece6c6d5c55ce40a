package broker

import (
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
)

// slowdown makes the broker read more slowly from a device that publishes above publishRate.
type slowdown struct {
	mqtt.HookBase
	limiter      *pace.Limiter
	internalUser string          // user name of the dispatcher's own client, which is not slowed down
	stopped      <-chan struct{} // closed when the broker stops
}

// ID returns the name of this hook for mochi's log.
func (s *slowdown) ID() string { return "slowdown" }

// Provides reports whether this hook implements hookMethod, a constant of mochi.
func (s *slowdown) Provides(hookMethod byte) bool { return hookMethod == mqtt.OnPacketRead }

// OnPacketRead returns packet. It first waits if packet is a PUBLISH of a device above its rate. mochi calls it from the goroutine that
// reads from the client, so the wait stops the reading.
func (s *slowdown) OnPacketRead(client *mqtt.Client, packet packets.Packet) (packets.Packet, error) {
	user := string(client.Properties.Username)
	if packet.FixedHeader.Type != packets.Publish || user == s.internalUser {
		return packet, nil
	}
	for !s.limiter.Take(devices.ID(user), devices.ViaSession) && !client.Closed() {
		pause := time.NewTimer(publishPause)
		select {
		case <-pause.C:
		case <-s.stopped:
			pause.Stop()
			return packet, nil
		}
	}
	return packet, nil
}

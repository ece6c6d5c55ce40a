package app

import (
	"context"
	"net/netip"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
)

// Wake asks a device that has a session to report now.
func (a *App) Wake(device devices.ID, hold time.Duration) {
	if a.mqtt != nil {
		a.mqtt.Wake(device, hold)
	}
}

// refusedSession tells the gate of a device that the embedded broker refused.
func (a *App) refusedSession(ctx context.Context, r broker.Refusal) {
	refusal := gate.Refusal{At: gate.Broker, Reason: gate.ReasonOf(r.Err), Principal: r.User, Detail: r.Err.Error()}
	if remote, err := netip.ParseAddrPort(r.Remote); err == nil {
		refusal.From = remote.Addr().Unmap()
	}
	a.gate.Refuse(ctx, refusal)
}

package app

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
)

// pushes wakes devices through the client that is attached by then.
type pushes struct{ client func() *mqtt.Client }

// Wake asks a device to report now.
func (p pushes) Wake(device devices.ID, hold time.Duration) {
	if c := p.client(); c != nil {
		c.Wake(device, hold)
	}
}

// refusedSession tells the gate of a device that the embedded broker refused.
func (a *App) refusedSession(ctx context.Context, r broker.Refusal) {
	refusal := gate.Refusal{At: gate.Broker, Reason: gate.Forbidden, Principal: r.User, What: r.Err.Error()}
	switch {
	case errors.Is(r.Err, devices.ErrUnauthenticated):
		refusal.Reason = gate.Unauthenticated
	case errors.Is(r.Err, devices.ErrUnavailable):
		refusal.Reason = gate.Unavailable
	}
	if remote, err := netip.ParseAddrPort(r.Remote); err == nil {
		refusal.From = remote.Addr().Unmap()
	}
	a.gate.Refuse(ctx, refusal)
}

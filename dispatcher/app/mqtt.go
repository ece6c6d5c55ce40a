package app

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
)

// mqttReports answers reports that came over MQTT.
type mqttReports struct {
	dispatcher *dispatcher.Dispatcher
	log        *slog.Logger
}

// HandleMQTT answers one report. The broker authenticated the device.
func (m mqttReports) HandleMQTT(ctx context.Context, device devices.ID, body []byte) devices.Reply {
	started := time.Now()
	reply := m.answer(ctx, device, body)
	m.dispatcher.CountReport("mqtt", string(reply.Reason), time.Since(started))
	return reply
}

func (m mqttReports) answer(ctx context.Context, device devices.ID, body []byte) devices.Reply {
	report, err := devices.DecodeReport(body)
	if err != nil {
		return m.refusal(report.ID, err)
	}
	reply, err := m.dispatcher.HandleReport(ctx, dispatcher.Caller{Device: device, Via: dispatcher.ViaBroker}, report)
	if err != nil {
		if errors.Is(err, dispatcher.ErrUnavailable) {
			m.log.WarnContext(ctx, "report not answered", "device", device, "err", err)
		}
		return m.refusal(report.ID, err)
	}
	return reply
}

func (m mqttReports) refusal(re string, err error) devices.Reply {
	r := devices.RefusalOf(err)
	return r.Reply(re, m.dispatcher.AfterRefusal(r.Reason))
}

// count counts the reports that never came to HandleMQTT, or not whole.
func (m mqttReports) count(event mqtt.Event) {
	reason := string(event)
	switch event {
	case mqtt.EventRetained, mqtt.EventBadTopic:
	case mqtt.EventBusy:
		reason = string(devices.ReasonBusyServer)
	case mqtt.EventSlow, mqtt.EventPanic:
		reason = string(devices.ReasonUnavailable)
	default:
		return
	}
	m.dispatcher.CountReport("mqtt", reason, 0)
}

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
	case errors.Is(r.Err, dispatcher.ErrUnauthenticated):
		refusal.Reason = gate.Unauthenticated
	case errors.Is(r.Err, dispatcher.ErrUnavailable):
		refusal.Reason = gate.Unavailable
	}
	if remote, err := netip.ParseAddrPort(r.Remote); err == nil {
		refusal.From = remote.Addr().Unmap()
	}
	a.gate.Refuse(ctx, refusal)
}

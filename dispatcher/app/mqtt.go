package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
)

const (
	afterForbidden   = 10 * time.Minute // a credential does not mend itself
	afterInvalid     = 30 * time.Second // the same bytes will not get better
	afterUnavailable = 3 * time.Second  // dependencies come back within seconds
)

// mqttReports answers reports that came over MQTT: the one mapping from errors
// to replies.
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
		return refusal(report.ID, err)
	}
	reply, err := m.dispatcher.HandleReport(ctx, dispatcher.Caller{Device: device, Via: dispatcher.ViaBroker}, report)
	if err != nil {
		if errors.Is(err, dispatcher.ErrUnavailable) {
			m.log.WarnContext(ctx, "report not answered", "device", device, "err", err)
		}
		return refusal(report.ID, err)
	}
	return reply
}

func refusal(re string, err error) devices.Reply {
	var bad *devices.Error
	switch {
	case errors.As(err, &bad):
		return devices.Reply{Re: re, Reason: bad.Reason, Code: bad.Code, Detail: bad.Detail, ReportAfterMS: afterInvalid.Milliseconds()}
	case errors.Is(err, dispatcher.ErrForbidden):
		return devices.Reply{Re: re, Reason: devices.ReasonForbidden, Code: "forbidden", ReportAfterMS: afterForbidden.Milliseconds()}
	}
	return devices.Reply{Re: re, Reason: devices.ReasonUnavailable, Code: "unavailable", ReportAfterMS: afterUnavailable.Milliseconds()}
}

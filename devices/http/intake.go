package http

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
)

// Intake admits the requests of devices over HTTP, and limits how much of this replica each device uses. All transports over HTTP share one
// Intake, so that a device cannot exceed its limits with a second transport.
type Intake struct {
	Options

	inProgress chan struct{} // bounds the concurrent reports, with one element for each
	bodies     *bodyLimiter  // bounds the report bodies that are still incomplete
}

// NewIntake returns an Intake with these options.
func NewIntake(options Options) *Intake {
	options.MaxReports = cmp.Or(options.MaxReports, 512)
	if options.Authenticate == nil {
		options.Authenticate = func(r *http.Request, device devices.ID, token string) (devices.Caller, error) {
			return options.Handler.Authenticate(r.Context(), device, token)
		}
	}
	return &Intake{Options: options, inProgress: make(chan struct{}, options.MaxReports), bodies: newBodyLimiter(options.MaxReports)}
}

// Admit returns the caller of a request that acts as device with this token, before its body is read. It refuses a device that sends more
// requests than Options.Pace allows.
func (i *Intake) Admit(request *http.Request, device devices.ID, token string) (devices.Caller, error) {
	caller, err := i.authenticate(request, device, token)
	if err == nil && !i.Pace.Take(device, caller.Via) {
		err = errOverRate
	}
	return caller, err
}

func (i *Intake) authenticate(request *http.Request, device devices.ID, token string) (devices.Caller, error) {
	if err := i.Enter(); err != nil {
		return devices.Caller{}, err
	}
	defer i.Leave()
	caller, err := i.Authenticate(request, device, token)
	if caller.Via == devices.ViaFleetToken && i.AddressOf != nil {
		caller.From = i.AddressOf(request)
	}
	return caller, err
}

// ReadBody returns the body of request. It refuses the request if too many bodies are incomplete.
func (i *Intake) ReadBody(response http.ResponseWriter, request *http.Request, caller devices.Caller) ([]byte, error) {
	return i.bodies.readBody(response, request, caller)
}

// Enter counts a report as in progress until Leave is called. It refuses the report if MaxReports are in progress.
func (i *Intake) Enter() error {
	select {
	case i.inProgress <- struct{}{}:
		return nil
	default:
		return busyError("too many reports at once")
	}
}

// Leave must be called after each successful Enter.
func (i *Intake) Leave() { <-i.inProgress }

// Refuse answers request with the refusal for err, and counts it for the transport.
func (i *Intake) Refuse(response http.ResponseWriter, request *http.Request, transport string, err error, started time.Time) {
	refusal, device := devices.RefusalOf(err), request.PathValue("device")
	reason, isOverRate := refusal.Code, errors.Is(err, errOverRate)
	if isOverRate {
		reason = pace.OverRate
	}
	if refusal.Status >= http.StatusInternalServerError && !isOverRate {
		i.Logger.WarnContext(request.Context(), "report not answered", "device", device, "err", err)
	}
	if refusal.Reason == devices.ReasonForbidden {
		i.OnRefused(request, device, err)
	}
	i.Handler.CountReport(transport, reason, time.Since(started))
	WriteRefusal(response, refusal, i.Handler.DelayAfterRefusal(refusal.DelayAs))
}

// errOverRate refuses a report that exceeds Options.Pace. It wraps a busyError.
var errOverRate = fmt.Errorf("refused: %w", busyError("this device reports too often"))

func busyError(detail string) error {
	return &devices.Error{Reason: devices.ReasonBusyServer, Code: string(devices.ReasonBusyServer), Detail: detail}
}

package http

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/fair"
)

const (
	// A device sends one short body at a time. But after it becomes unreachable, its old connections stay open for a while, so the limits are
	// higher than one body.
	incompleteBodiesFactor = 8       // The limit of incomplete bodies in total is this number times Options.MaxReports.
	maxBodiesPerDevice     = 4       // incomplete bodies of one device
	maxLongBodiesPerDevice = 2       // incomplete bodies of one device that are longer than shortBody
	shortBody              = 4 << 10 // bytes
)

// bodyLimiter bounds the number of report bodies that are not received completely yet, because a sender can announce a body and send it
// slowly. With the default MaxReports, at most 4096 bodies are incomplete, and at most 512 of them are longer than shortBody (32 MiB
// together).
type bodyLimiter struct{ all, long bodyShares }

func newBodyLimiter(maxReports int) *bodyLimiter {
	return &bodyLimiter{all: newBodyShares(incompleteBodiesFactor*maxReports, maxBodiesPerDevice), long: newBodyShares(maxReports, maxLongBodiesPerDevice)}
}

// bodyShares limits the incomplete bodies of each device, and of each fleet token, because a sender that has a fleet token can use the name
// of any device.
type bodyShares struct{ devices, fleet *fair.Shares }

func newBodyShares(maxTotal, maxPerDevice int) bodyShares {
	return bodyShares{devices: fair.NewSharesWithoutReserve(maxTotal, maxPerDevice), fleet: fair.NewSharesWithoutReserve(maxTotal, max(1, maxTotal/2))}
}

// reserve counts one body of this caller until end is called. If a bound is reached, ok is false and nothing is counted.
func (s bodyShares) reserve(caller devices.Caller) (end func(), ok bool) {
	leaveDevice, ok := s.devices.TryStart(string(caller.Device), false)
	if !ok || caller.Via != devices.ViaFleetToken {
		return leaveDevice, ok
	}
	leaveFleet, ok := s.fleet.TryStart(string(caller.Token[:]), false)
	if !ok {
		leaveDevice()
	}
	return func() { leaveDevice(); leaveFleet() }, ok
}

// readBody returns the body of a report. If the body is cut off, the error is devices.ErrIncomplete. If a bound is reached, the
// error refuses the report with busy_server.
func (b *bodyLimiter) readBody(response http.ResponseWriter, request *http.Request, caller devices.Caller) ([]byte, error) {
	leave, ok := b.all.reserve(caller)
	if !ok {
		return nil, busyError("too many incomplete bodies: of this device, of its fleet token or in total")
	}
	defer leave()
	from := http.MaxBytesReader(response, request.Body, devices.MaxBody+1)
	body, err := io.ReadAll(io.LimitReader(from, shortBody))
	if err == nil && len(body) == shortBody {
		leave, ok := b.long.reserve(caller)
		if !ok {
			return nil, busyError("too many long reports at once: of this device, of its fleet token or in total")
		}
		defer leave()
		var rest []byte
		rest, err = io.ReadAll(from)
		body = append(body, rest...)
	}
	if err == nil || errors.As(err, new(*http.MaxBytesError)) {
		return body, nil // DecodeReport refuses a body that is too long.
	}
	return nil, fmt.Errorf("%w: %w", devices.ErrIncomplete, err)
}

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
	// A device has little to send and sends one body at a time, but the connections of
	// one that went out of reach stay for a while.
	bodiesPerReport = 8 // that are not here yet, for each report that may be under way
	eachBodies      = 4 // of one device
	eachLongBody    = 2
	shortBody       = 4 << 10
)

// bodies bounds the bodies of reports that are not here yet: a sender may promise one
// and take its time. All together: 4096, of which 512 are long, which is 32 MiB.
type bodies struct{ all, long bodyShares }

func newBodies(reports int) *bodies {
	return &bodies{all: newBodyShares(bodiesPerReport*reports, eachBodies), long: newBodyShares(reports, eachLongBody)}
}

// bodyShares has a share for each device, and for each fleet token one of all those that come
// with it: a body with a fleet token may be in the name of any device.
type bodyShares struct{ devices, fleet *fair.Shares }

func newBodyShares(most, each int) bodyShares {
	return bodyShares{devices: fair.Unkept(most, each), fleet: fair.Unkept(most, max(1, most/2))}
}

func (s bodyShares) take(caller devices.Caller, token string) (leave func(), ok bool) {
	leaveDevice, ok := s.devices.Take(string(caller.Device), false)
	if !ok || caller.Via != devices.ViaFleetToken {
		return leaveDevice, ok
	}
	leaveFleet, ok := s.fleet.Take(token, false)
	if !ok {
		leaveDevice()
	}
	return func() { leaveDevice(); leaveFleet() }, ok
}

// read reads a report, within the time that the server gives a request. A body that
// broke off is the network's fault: the device is to send the same again.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, caller devices.Caller) ([]byte, error) {
	leave, ok := b.all.take(caller, bearer(r))
	if !ok {
		return nil, busy("too many bodies are not here yet, of this device, of its fleet token or of all")
	}
	defer leave()
	from := http.MaxBytesReader(w, r.Body, devices.MaxBody+1)
	body, err := io.ReadAll(io.LimitReader(from, shortBody))
	if err == nil && len(body) == shortBody {
		leave, ok := b.long.take(caller, bearer(r))
		if !ok {
			return nil, busy("too many long reports at once, of this device, of its fleet token or of all")
		}
		defer leave()
		var rest []byte
		rest, err = io.ReadAll(from)
		body = append(body, rest...)
	}
	if err == nil || errors.As(err, new(*http.MaxBytesError)) {
		return body, nil // too much of it: decoding refuses that
	}
	return nil, fmt.Errorf("%w: %w", devices.ErrIncomplete, err)
}

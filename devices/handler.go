package devices

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"time"
)

// AnswerAfterWait is the maximum time between the end of the wait of a parked report and its answer. If a search for a task is in progress
// when the wait ends, the answer comes after the search.
const AnswerAfterWait = 30 * time.Second

// Handler decides how reports are answered. All transports share one Handler. An error of its methods refuses the whole report (see
// RefusalOf). Devices are woken by a waiters.Waker, not by a Handler.
type Handler interface {
	// Authenticate checks that a sender with this token may report as device, and returns the Caller of the report.
	Authenticate(ctx context.Context, device ID, token string) (Caller, error)
	// AuthenticateSession returns nil if the device may open a session with this token.
	// The Caller of the session's reports is then Caller{Device: device, Via: ViaSession}.
	AuthenticateSession(ctx context.Context, device ID, token string) error
	HandleReport(ctx context.Context, caller Caller, report Report) (Reply, error)
	// HandleWaiting does the same as HandleReport, but lets an answer without a task wait for at most the duration wait. It returns at most
	// AnswerAfterWait after the end of this duration. It calls onPark when the wait begins (when the report is parked). couldWait reports
	// whether the answer was allowed to wait, even if it was given at once.
	HandleWaiting(ctx context.Context, caller Caller, report Report, wait time.Duration, onPark func()) (reply Reply, couldWait bool, err error)
	// AfterRefusal returns the time after which the device of a refused report should report again.
	AfterRefusal(reason Reason) time.Duration
	// CountReport counts a report in the metrics of a transport. reason is the reason of the reply. For a
	// refusal over HTTP, reason is the code of the refusal; for a message that a transport drops, reason
	// names the cause. took is the time that handling the report took, without the time for which it was
	// parked.
	CountReport(transport, reason string, took time.Duration)
}

// Via is the way in which the sender of a report proved that it is the device.
type Via int

// The ways in which a caller proves that it is the device.
const (
	ViaOwnToken Via = iota + 1
	ViaFleetToken
	ViaSession // authenticated when its session with the transport or with a broker began
	ViaLease   // not a device but the holder of a caller's lease. No transport uses it.
)

// Wire is the name of the protocol in which a device reports.
type Wire string

// The wires of devices.
const (
	WireHTTP    Wire = "http"
	WireMQTT    Wire = "mqtt"
	WireHawkbit Wire = "hawkbit" // the DDI of Eclipse hawkBit
)

// WireName returns the wire of the caller. If Wire is empty, a session is a session over MQTT, and any other caller reports over HTTP.
func (c Caller) WireName() Wire {
	switch {
	case c.Wire != "":
		return c.Wire
	case c.Via == ViaSession:
		return WireMQTT
	}
	return WireHTTP
}

// Caller is the authenticated sender of a report. It is a device or, with ViaLease, the holder of a lease
// that a program requested through the API.
type Caller struct {
	Device ID
	Via    Via
	Wire   Wire              // empty: see WireName
	From   netip.Addr        // ViaFleetToken: the address of the sender; invalid if the transport does not know it
	Token  [sha256.Size]byte // ViaOwnToken, ViaFleetToken: the hash of the token. ViaLease: the hash of the caller's token, if it has a token
}

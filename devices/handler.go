package devices

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"time"
)

// AnswerAfterWait is the maximum time between the end of the wait of a parked report and its answer. It is not 0, because an attempt to get
// a task may still be in progress at the end of the wait.
const AnswerAfterWait = 30 * time.Second

// Handler decides how reports are answered. All transports share one Handler. An error of its methods refuses the whole report (RefusalOf).
type Handler interface {
	// Authenticate checks that a sender with this token may report as device, and returns the Caller of the report.
	Authenticate(ctx context.Context, device ID, token string) (Caller, error)
	// AuthenticateSession returns nil if the device may open a session with this token. The Caller of the reports in this session is
	// Caller{Device: device, Via: ViaSession}.
	AuthenticateSession(ctx context.Context, device ID, token string) error
	HandleReport(ctx context.Context, caller Caller, report Report) (Reply, error)
	// HandleWaiting handles a report as HandleReport does, but delays an answer without a task by at most wait plus AnswerAfterWait. It
	// calls onPark when the wait begins. couldWait is false if there was no room to park the report. A report that is answered at once can
	// have couldWait = true.
	HandleWaiting(ctx context.Context, caller Caller, report Report, wait time.Duration, onPark func()) (reply Reply, couldWait bool, err error)
	// DelayAfterRefusal returns the time after which the device of a refused report should report again.
	DelayAfterRefusal(reason Reason) time.Duration
	// CountReport counts a report in the metrics of a transport. reason is the reason of the reply, the code of a refusal over HTTP, or the
	// cause for which the transport itself drops or refuses the report. took is the time for handling it, without the time parked.
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

// WireName returns c.Wire if it is set. If it is empty, WireName returns WireMQTT for a caller with a session, and WireHTTP for any other
// caller. So a new transport must set c.Wire.
func (c Caller) WireName() Wire {
	switch {
	case c.Wire != "":
		return c.Wire
	case c.Via == ViaSession:
		return WireMQTT
	}
	return WireHTTP
}

// Caller is the authenticated sender of a report: a device or, with ViaLease, the holder of a lease.
type Caller struct {
	Device ID
	Via    Via
	Wire   Wire              // empty: see WireName
	From   netip.Addr        // ViaFleetToken: the address of the sender; invalid if the transport does not know it
	Token  [sha256.Size]byte // ViaOwnToken, ViaFleetToken: the hash of the token. ViaLease: the hash of the caller's token, if it has a token
}

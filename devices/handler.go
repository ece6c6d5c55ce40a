package devices

import (
	"context"
	"crypto/sha256"
	"time"
)

// AnswerAfterWait is the longest time from the end of a report's wait to the answer. If the search for
// a task is in progress when the wait ends, it is finished first.
const AnswerAfterWait = 30 * time.Second

// Handler decides how reports are answered. All transports share one Handler. An error of
// its methods refuses the whole report: see RefusalOf. For waking devices see waiters.Waker.
type Handler interface {
	// Authenticate checks that the owner of this token may report as device, and returns the Caller of the report.
	Authenticate(ctx context.Context, device ID, token string) (Caller, error)
	// AuthenticateSession returns nil if the device may open a session with this token.
	// The Caller of the session's reports is then Caller{Device: device, Via: ViaSession}.
	AuthenticateSession(ctx context.Context, device ID, token string) error
	HandleReport(ctx context.Context, caller Caller, report Report) (Reply, error)
	// HandleWaiting is HandleReport for an answer that may wait for a task for up to wait. It returns at
	// most AnswerAfterWait later. onPark is called when the report is parked, that is, when the
	// waiting begins. couldWait reports whether the answer was allowed to wait, even if it was given at once.
	HandleWaiting(ctx context.Context, caller Caller, report Report, wait time.Duration, onPark func()) (reply Reply, couldWait bool, err error)
	// AfterRefusal returns the time after which the device of a refused report should report again.
	AfterRefusal(reason Reason) time.Duration
	// CountReport counts a report in the metrics of a transport. reason is the reason of the reply.
	// For a refusal over HTTP it is the code of the refusal, and for a message that a transport drops
	// it names the cause. took is the handling time without the time that the report was parked.
	CountReport(transport, reason string, took time.Duration)
}

// Via is the way in which a caller proved that it is the device.
type Via int

// The ways in which a caller proves that it is the device.
const (
	ViaOwnToken Via = iota + 1
	ViaFleetToken
	ViaSession // authenticated when its session with the transport or with a broker began
	ViaLease   // not a device but the holder of a caller's lease. No transport uses it.
)

// Caller is the authenticated sender of a report: a device or, only with ViaLease, the holder of a
// lease that a program (a caller of the API) has requested.
type Caller struct {
	Device ID
	Via    Via
	Token  [sha256.Size]byte // ViaOwnToken: the hash of the device's token. ViaLease: the hash of the caller's token, if it has a token
}

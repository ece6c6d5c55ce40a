package devices

import (
	"context"
	"crypto/sha256"
	"time"
)

// AnswerAfterWait bounds the time from the end of a wait to the answer: a search
// under way ends before.
const AnswerAfterWait = 30 * time.Second

// Handler decides how reports are answered. All transports share one. Its errors
// refuse a report whole: see RefusalOf. How it wakes devices: waiters.Waker.
type Handler interface {
	// Authenticate returns the caller that reports as device with this token.
	Authenticate(ctx context.Context, device ID, token string) (Caller, error)
	// AuthenticateSession says whether a device may open a session with this
	// token. Its reports then come from Caller{device, ViaSession}.
	AuthenticateSession(ctx context.Context, device ID, token string) error
	HandleReport(ctx context.Context, caller Caller, report Report) (Reply, error)
	// Wait is HandleReport whose answer waits for a task until wait is over: it comes within
	// AnswerAfterWait. onPark is called when the waiting begins; held false: it could not wait.
	Wait(ctx context.Context, caller Caller, report Report, wait time.Duration, onPark func()) (reply Reply, held bool, err error)
	// AfterRefusal says when the device of a refused report is to come back.
	AfterRefusal(reason Reason) time.Duration
	// CountReport counts a report of a transport by the reason of its reply, or
	// the code of its refusal.
	CountReport(transport, reason string, took time.Duration)
}

// Via is how a caller proved to be the device.
type Via int

// The ways to prove it.
const (
	ViaOwnToken Via = iota + 1
	ViaFleetToken
	ViaSession // when its session began, of the transport or at a broker
	ViaLease   // it is no device, but the holder of a caller: no transport has it
)

// Caller is the authenticated sender of a report.
type Caller struct {
	Device ID
	Via    Via
	Token  [sha256.Size]byte // with ViaOwnToken: its hash; with ViaLease: that of the caller, if it has one
}

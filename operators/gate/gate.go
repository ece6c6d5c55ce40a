// Package gate handles clients without a valid token: it locks out addresses that guess tokens, and counts, logs and
// records refusals.
package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/throttle"
	"github.com/fleetslots/dispatcher/store"
)

// EntryPoint is the name of the interface that refused a client.
type EntryPoint string

// Values of EntryPoint. A refusal at API or SignIn is also recorded as an event.
const (
	API    EntryPoint = "api"
	SignIn EntryPoint = "sign_in"
	Report EntryPoint = "report" // a report over HTTP
	Broker EntryPoint = "broker" // a device's session at the embedded broker
)

// Reason is the cause of a refusal.
type Reason string

// The reasons for a refusal.
const (
	Unauthenticated Reason = "unauthenticated" // the token is missing or unknown
	Forbidden       Reason = "forbidden"       // the token is known, but lacks the role
	LockedOut       Reason = "locked_out"      // too many wrong tokens came from the address
	Unavailable     Reason = "unavailable"     // the token could not be checked
)

// unknownPrincipal is the principal of a request without a known token. No operator's token has this name.
const unknownPrincipal = "nobody"

const recordTimeout = 2 * time.Second

// Refusal is one request or one session that was refused.
type Refusal struct {
	EntryPoint EntryPoint
	Reason     Reason
	Principal  string     // name of the token, or id that the device claims; empty means nobody
	IsDevice   bool       // the principal is a device
	From       netip.Addr // an invalid address means that the address is unknown
	Detail     string     // operation or path, or the error
}

// Ledger records events of refusals. The product uses *store.Store.
type Ledger interface {
	RecordRefusal(ctx context.Context, event store.Event) error
}

// Options are the settings of a Gate.
type Options struct {
	Log        *slog.Logger
	Ledger     Ledger
	Proxies    []netip.Prefix   // networks whose X-Forwarded-For is trusted
	MaxGuesses int              // number of wrong operator tokens within guessSpan after which an address is locked out; 0 means maxGuesses
	Now        func() time.Time // nil means time.Now
}

// Gate counts the refusals and wrong tokens of one replica. It collects dispatcher_refusals_total.
type Gate struct {
	*prometheus.CounterVec

	options            Options
	operators, devices *guessCounter // guesses of tokens of operators, and of devices
	samples            refusalSamples
}

// New returns a gate that has counted no refusals.
func New(options Options) *Gate {
	if options.Now == nil {
		options.Now = time.Now
	}
	g := &Gate{
		CounterVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dispatcher_refusals_total", Help: "Requests and sessions refused because of the caller.",
		}, []string{"at", "reason"}),
		options: options, operators: newGuessCounter(options.Now, cmp.Or(options.MaxGuesses, maxGuesses)), devices: newGuessCounter(options.Now, maxGuesses),
		samples: refusalSamples{now: options.Now, byGroup: map[sampleGroup]*throttle.Samples[sampleKey]{}},
	}
	for _, at := range []EntryPoint{API, SignIn, Report, Broker} { // so that each series exists from the start, with the value 0
		for _, reason := range []Reason{Unauthenticated, Forbidden, LockedOut, Unavailable} {
			g.WithLabelValues(string(at), string(reason))
		}
	}
	return g
}

// ClientAddress returns the address of the client that sent the request. If trusted proxies forwarded the request, this is the address that
// they report.
func (g *Gate) ClientAddress(r *http.Request) netip.Addr {
	return clientAddress(r, g.options.Proxies)
}

// Attempt is a token that a client presents.
type Attempt struct {
	EntryPoint EntryPoint
	From       netip.Addr
	Token      string
	Device     string // at the entry point Report, the device that the client claims to be; otherwise empty
}

// CheckToken calls check, which looks up the token of attempt, and returns its error. If the error is devices.ErrUnauthenticated, the token
// counts as a wrong guess.
//
// If too many guesses came from the address (at the entry point Report: from this device at this address), it is locked out. Then
// CheckToken does not call check, and lockout is the remaining time. During a lock-out, tokens that this address used successfully within
// acceptedFor still work, except for a sign-in.
//
// CheckToken looks up the tokens of an address one after another. If it did so concurrently, all tokens could be checked before the first
// wrong one is counted.
func (g *Gate) CheckToken(ctx context.Context, attempt Attempt, check func(context.Context) error) (lockout time.Duration, err error) {
	guesses, key := g.operators, guesserKey{guesserNetwork(attempt.From), attempt.Device}
	if attempt.EntryPoint == Report {
		guesses = g.devices
	}
	isRemembered := attempt.EntryPoint != SignIn
	if isRemembered && guesses.isAccepted(key.network, attempt.Token) {
		return 0, check(ctx)
	}
	one, lockout, err := guesses.beginTokenLookUp(ctx, key)
	if one == nil {
		return lockout, err
	}
	isWrong := false
	defer func() {
		if guesses.endTokenLookUp(key, one, isWrong) {
			g.CountRefusal(ctx, Refusal{EntryPoint: attempt.EntryPoint, Reason: LockedOut, Principal: attempt.Device, IsDevice: attempt.Device != "", From: attempt.From, Detail: "too many wrong tokens"})
		}
	}()
	err = check(ctx)
	isWrong = attempt.Token != "" && errors.Is(err, devices.ErrUnauthenticated)
	if err == nil && isRemembered {
		guesses.recordAccepted(key.network, attempt.Token)
	}
	return 0, err
}

// CheckReportToken calls check, which looks up the token of a report over HTTP. If too many wrong tokens of this device came from the
// address, CheckReportToken does not call check and returns devices.ErrLockedOut.
func (g *Gate) CheckReportToken(r *http.Request, device devices.ID, token string, check func(context.Context) error) error {
	lockout, err := g.CheckToken(r.Context(), Attempt{EntryPoint: Report, From: g.ClientAddress(r), Token: token, Device: string(device)}, check)
	if lockout > 0 {
		return devices.ErrLockedOut
	}
	return err
}

// CountRefusal counts refusal. It logs only the first refusal of each kind in a minute. At the interfaces API and SignIn it also records
// this refusal as an event. The next log line or event has the number of refusals that were left out.
func (g *Gate) CountRefusal(ctx context.Context, refusal Refusal) {
	g.WithLabelValues(string(refusal.EntryPoint), string(refusal.Reason)).Inc()
	refusal.Principal = sanitizeText(cmp.Or(refusal.Principal, unknownPrincipal))
	leftOut, ok := g.samples.shouldLog(refusal)
	if !ok {
		return
	}
	from := "unknown"
	if refusal.From.IsValid() {
		from = refusal.From.String()
	}
	attributes := []any{"at", refusal.EntryPoint, "reason", refusal.Reason, "principal", refusal.Principal, "from", from, "what", sanitizeText(refusal.Detail)}
	if leftOut > 0 {
		attributes = append(attributes, "left_out", leftOut)
	}
	g.options.Log.WarnContext(ctx, "refused", attributes...)
	if refusal.EntryPoint == API || refusal.EntryPoint == SignIn {
		g.writeRefusalEvent(ctx, refusal, fmt.Sprintf("at=%s reason=%s from=%s left_out=%d what=%s", refusal.EntryPoint, refusal.Reason, from, leftOut, sanitizeText(refusal.Detail)))
	}
}

// CountReportRefusal calls CountRefusal for a report over HTTP that was refused because of cause. device is the id that the sender claims.
func (g *Gate) CountReportRefusal(r *http.Request, device string, cause error) {
	g.CountRefusal(r.Context(), Refusal{EntryPoint: Report, Reason: ReasonOf(cause), Principal: device, IsDevice: true, From: g.ClientAddress(r), Detail: "report"})
}

// ReasonOf returns the Reason for err, the error with which a device was refused.
func ReasonOf(err error) Reason {
	switch {
	case errors.Is(err, devices.ErrUnauthenticated):
		return Unauthenticated
	case errors.Is(err, devices.ErrLockedOut):
		return LockedOut
	case errors.Is(err, devices.ErrUnavailable):
		return Unavailable
	}
	return Forbidden
}

// writeRefusalEvent writes an event with this detail about a refusal. It does so even if the request has ended, because a client that
// disconnects early must be recorded, too.
func (g *Gate) writeRefusalEvent(ctx context.Context, refusal Refusal, detail string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	event := store.Event{Actor: refusal.Principal, Detail: detail}
	if refusal.IsDevice {
		event.ActorKind = store.ActorDevice
	}
	if err := g.options.Ledger.RecordRefusal(ctx, event); err != nil {
		g.options.Log.WarnContext(ctx, "event of a refusal not written", "err", err)
	}
}

// sanitizeText makes text from an unknown client safe to store: it limits the length, and replaces NUL and invalid UTF-8.
func sanitizeText(text string) string {
	const maxLength = 128
	if len(text) > maxLength {
		text = text[:maxLength] + "..."
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

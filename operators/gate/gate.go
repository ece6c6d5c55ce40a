// Package gate handles clients without a valid token: it locks out addresses that guess operators' tokens, and counts,
// logs and records refusals.
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

// The interfaces. A refusal by API or SignIn is also recorded as an event.
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

// recordTimeout is the time limit for writing an event.
const recordTimeout = 2 * time.Second

// Refusal is one request or one session that was refused.
type Refusal struct {
	EntryPoint EntryPoint
	Reason     Reason
	Principal  string     // name of the token, or id that the device claims; empty means nobody
	From       netip.Addr // an invalid address means that the address is unknown
	Detail     string     // operation or path, or the error
	IsGuess    bool       // the token is unknown, so it counts as a guess
}

// Ledger records events of refusals. The product uses *store.Store.
type Ledger interface {
	RecordRefusal(ctx context.Context, e store.Event) error
}

// Options are the settings of a Gate.
type Options struct {
	Log        *slog.Logger
	Ledger     Ledger
	Proxies    []netip.Prefix   // networks whose X-Forwarded-For is trusted
	MaxGuesses int              // number of wrong tokens within guessSpan after which an address is locked out; 0 means maxGuesses
	Now        func() time.Time // nil means time.Now
}

// Gate counts the refusals and wrong tokens of one replica. It collects dispatcher_refusals_total.
type Gate struct {
	*prometheus.CounterVec

	options Options
	guesses *guessCounter
	samples refusalSamples
}

// New returns a gate that has counted no refusals.
func New(o Options) *Gate {
	if o.Now == nil {
		o.Now = time.Now
	}
	g := &Gate{
		CounterVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dispatcher_refusals_total", Help: "Requests and sessions refused because of the caller.",
		}, []string{"at", "reason"}),
		options: o, guesses: newGuessCounter(o.Now, cmp.Or(o.MaxGuesses, maxGuesses)), samples: refusalSamples{now: o.Now, byGroup: map[sampleGroup]*throttle.Samples[sampleKey]{}},
	}
	for _, at := range []EntryPoint{API, SignIn, Report, Broker} { // so that each series exists from the start, with the value 0
		for _, reason := range []Reason{Unauthenticated, Forbidden, LockedOut, Unavailable} {
			g.WithLabelValues(string(at), string(reason))
		}
	}
	return g
}

// ClientAddress returns the address that a request came from, as seen behind trusted proxies.
func (g *Gate) ClientAddress(r *http.Request) netip.Addr { return clientAddress(r, g.options.Proxies) }

// LockoutLeft returns how long the address must not try this token. If it is 0, the address may try the token now. An empty token
// is never accepted, so with it the result is the time that is left for all clients of the address.
func (g *Gate) LockoutLeft(from netip.Addr, token string) time.Duration {
	return g.guesses.lockoutLeft(from, token)
}

// RecordAccepted records that an operator's token from this address was accepted.
func (g *Gate) RecordAccepted(from netip.Addr, token string) { g.guesses.recordAccepted(from, token) }

// Refuse counts a refusal. The first refusal of its kind in a minute is logged; at the interfaces API and SignIn it is
// also recorded as an event. The next log line or event has the number of refusals that were left out.
func (g *Gate) Refuse(ctx context.Context, r Refusal) {
	g.logRefusal(ctx, r)
	if r.IsGuess && g.guesses.recordWrong(r.From) {
		r.Reason, r.Detail = LockedOut, "too many wrong tokens"
		g.logRefusal(ctx, r)
	}
}

// RefuseReport calls Refuse for a report over HTTP.
func (g *Gate) RefuseReport(r *http.Request, device string, err error) {
	g.Refuse(r.Context(), Refusal{EntryPoint: Report, Reason: ReasonOf(err), Principal: device, From: g.ClientAddress(r), Detail: "report"})
}

// ReasonOf returns the reason for the error with which a device was refused.
func ReasonOf(err error) Reason {
	switch {
	case errors.Is(err, devices.ErrUnauthenticated):
		return Unauthenticated
	case errors.Is(err, devices.ErrUnavailable):
		return Unavailable
	}
	return Forbidden
}

func (g *Gate) logRefusal(ctx context.Context, r Refusal) {
	g.WithLabelValues(string(r.EntryPoint), string(r.Reason)).Inc()
	r.Principal = cleanText(cmp.Or(r.Principal, unknownPrincipal))
	leftOut, ok := g.samples.shouldLog(r)
	if !ok {
		return
	}
	from := "unknown"
	if r.From.IsValid() {
		from = r.From.String()
	}
	attributes := []any{"at", r.EntryPoint, "reason", r.Reason, "principal", r.Principal, "from", from, "what", cleanText(r.Detail)}
	if leftOut > 0 {
		attributes = append(attributes, "left_out", leftOut)
	}
	g.options.Log.WarnContext(ctx, "refused", attributes...)
	if r.EntryPoint == API || r.EntryPoint == SignIn {
		g.record(ctx, r, fmt.Sprintf("at=%s reason=%s from=%s left_out=%d what=%s", r.EntryPoint, r.Reason, from, leftOut, cleanText(r.Detail)))
	}
}

// record writes the event even if the request has ended, so that a client that disconnects early is recorded, too.
func (g *Gate) record(ctx context.Context, r Refusal, detail string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := g.options.Ledger.RecordRefusal(ctx, store.Event{Actor: r.Principal, Detail: detail}); err != nil {
		g.options.Log.WarnContext(ctx, "event of a refusal not written", "err", err)
	}
}

// cleanText limits the length of text from an unknown client, and makes it valid UTF-8 without NUL.
func cleanText(text string) string {
	const maxLength = 128
	if len(text) > maxLength {
		text = text[:maxLength] + "..."
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

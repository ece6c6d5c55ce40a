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

// At is the name of the interface that refused a client.
type At string

// The interfaces. A refusal by API or SignIn is also recorded as an event.
const (
	API    At = "api"
	SignIn At = "sign_in"
	Report At = "report" // a report over HTTP
	Broker At = "broker" // a device's session at the embedded broker
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

// nobody is the principal of a request without a known token. No operator's token has this name.
const nobody = "nobody"

// recordTime is the time limit for writing an event.
const recordTime = 2 * time.Second

// Refusal is one request or one session that was refused.
type Refusal struct {
	At        At
	Reason    Reason
	Principal string     // name of the token, or id that the device claims; empty means nobody
	From      netip.Addr // an invalid address means that the address is unknown
	Detail    string     // operation or path, or the error
	Guess     bool       // the token is unknown, so it counts as a guess
}

// Ledger records events of refusals. The product uses *store.Store.
type Ledger interface {
	RecordRefusal(ctx context.Context, e store.Event) error
}

// Options are the settings of a Gate.
type Options struct {
	Log     *slog.Logger
	Ledger  Ledger
	Proxies []netip.Prefix   // networks whose X-Forwarded-For is trusted
	Guesses int              // number of wrong tokens after which an address is locked out; 0 means 10
	Now     func() time.Time // nil means time.Now
}

// Gate counts the refusals and wrong tokens of one replica. It collects dispatcher_refusals_total.
type Gate struct {
	*prometheus.CounterVec

	options Options
	guesses *guesses
	samples samples
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
		options: o, guesses: newGuesses(o.Now, cmp.Or(o.Guesses, mostGuesses)), samples: samples{now: o.Now, of: map[group]*throttle.Samples[sample]{}},
	}
	for _, at := range []At{API, SignIn, Report, Broker} { // so that each series exists from the start, with the value 0
		for _, reason := range []Reason{Unauthenticated, Forbidden, LockedOut, Unavailable} {
			g.WithLabelValues(string(at), string(reason))
		}
	}
	return g
}

// From returns the address that a request came from, as seen behind trusted proxies.
func (g *Gate) From(r *http.Request) netip.Addr { return client(r, g.options.Proxies) }

// Wait returns how long the address must not try this token. If it is 0, the address may try the token now.
func (g *Gate) Wait(from netip.Addr, token string) time.Duration { return g.guesses.wait(from, token) }

// Accepted records that an operator's token from this address was accepted.
func (g *Gate) Accepted(from netip.Addr, token string) { g.guesses.accepted(from, token) }

// Refuse counts a refusal. The first refusal of its kind in a minute is logged; at the interfaces API and SignIn it is
// also recorded as an event. The next log line or event has the number of refusals that were left out.
func (g *Gate) Refuse(ctx context.Context, r Refusal) {
	g.tell(ctx, r)
	if r.Guess && g.guesses.wrong(r.From) {
		r.Reason, r.Detail = LockedOut, "too many wrong tokens"
		g.tell(ctx, r)
	}
}

// RefuseReport calls Refuse for a report over HTTP.
func (g *Gate) RefuseReport(r *http.Request, device string, err error) {
	g.Refuse(r.Context(), Refusal{At: Report, Reason: ReasonOf(err), Principal: device, From: g.From(r), Detail: "report"})
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

func (g *Gate) tell(ctx context.Context, r Refusal) {
	g.WithLabelValues(string(r.At), string(r.Reason)).Inc()
	r.Principal = short(cmp.Or(r.Principal, nobody))
	leftOut, ok := g.samples.pass(r)
	if !ok {
		return
	}
	from := "unknown"
	if r.From.IsValid() {
		from = r.From.String()
	}
	attributes := []any{"at", r.At, "reason", r.Reason, "principal", r.Principal, "from", from, "what", short(r.Detail)}
	if leftOut > 0 {
		attributes = append(attributes, "left_out", leftOut)
	}
	g.options.Log.WarnContext(ctx, "refused", attributes...)
	if r.At == API || r.At == SignIn {
		g.record(ctx, r, fmt.Sprintf("at=%s reason=%s from=%s left_out=%d what=%s", r.At, r.Reason, from, leftOut, short(r.Detail)))
	}
}

// record writes the event even if the request has ended, so that a client that disconnects early is recorded, too.
func (g *Gate) record(ctx context.Context, r Refusal, detail string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := g.options.Ledger.RecordRefusal(ctx, store.Event{Actor: r.Principal, Detail: detail}); err != nil {
		g.options.Log.WarnContext(ctx, "event of a refusal not written", "err", err)
	}
}

// short limits the length of text from an unknown client, and makes it valid UTF-8 without NUL.
func short(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

// Package gate handles callers without the right token: it locks out addresses
// that guess tokens of operators, and counts, logs and records refusals.
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

// At names the interface that refused a caller.
type At string

// The interfaces. The first two refuse operators, which is also an event.
const (
	API    At = "api"
	SignIn At = "sign_in"
	Report At = "report" // over HTTP
	Broker At = "broker" // a device's session at the embedded broker
)

// Reason is the cause of a refusal.
type Reason string

// The reasons.
const (
	Unauthenticated Reason = "unauthenticated" // the token is missing or unknown
	Forbidden       Reason = "forbidden"       // the token is known, and lacks the role
	LockedOut       Reason = "locked_out"      // too many wrong tokens came from the address
	Unavailable     Reason = "unavailable"     // the token could not be checked
)

// nobody is the principal that no token names. No operator's token has that name.
const nobody = "nobody"

// recordTime bounds the writing of an event.
const recordTime = 2 * time.Second

// Refusal is one request, or one session, that was refused.
type Refusal struct {
	At        At
	Reason    Reason
	Principal string     // name of the token, or the device that it claims to be; empty: nobody
	From      netip.Addr // invalid: not known
	Detail    string     // operation or path, or the error
	Guess     bool       // its token is unknown
}

// Ledger keeps events; *store.Store.
type Ledger interface {
	RecordRefusal(ctx context.Context, e store.Event) error
}

// Options set up a Gate.
type Options struct {
	Log     *slog.Logger
	Ledger  Ledger
	Proxies []netip.Prefix   // whose X-Forwarded-For is trusted
	Guesses int              // wrong tokens after which an address is locked out; default 10
	Now     func() time.Time // default time.Now
}

// Gate counts refusals and wrong tokens of one replica. It collects dispatcher_refusals_total.
type Gate struct {
	*prometheus.CounterVec

	options Options
	guesses *guesses
	samples samples
}

// New returns a gate without refusals.
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
	for _, at := range []At{API, SignIn, Report, Broker} { // there from 0 on
		for _, reason := range []Reason{Unauthenticated, Forbidden, LockedOut, Unavailable} {
			g.WithLabelValues(string(at), string(reason))
		}
	}
	return g
}

// From is the address that a request came from.
func (g *Gate) From(r *http.Request) netip.Addr { return client(r, g.options.Proxies) }

// Wait is how long that address must not try that token; 0: it may try now.
func (g *Gate) Wait(from netip.Addr, token string) time.Duration { return g.guesses.wait(from, token) }

// Accepted notes that an operator's token was accepted from there.
func (g *Gate) Accepted(from netip.Addr, token string) { g.guesses.accepted(from, token) }

// Refuse counts a refusal. The first of its kind in a minute is logged and, of an
// operator, an event; the next one says how many were left out.
func (g *Gate) Refuse(ctx context.Context, r Refusal) {
	g.tell(ctx, r)
	if r.Guess && g.guesses.wrong(r.From) {
		r.Reason, r.Detail = LockedOut, "too many wrong tokens"
		g.tell(ctx, r)
	}
}

// RefuseReport is Refuse of a report over HTTP.
func (g *Gate) RefuseReport(r *http.Request, device string, err error) {
	g.Refuse(r.Context(), Refusal{At: Report, Reason: ReasonOf(err), Principal: device, From: g.From(r), Detail: "report"})
}

// ReasonOf is the reason for the error that refused a device.
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

// record goes on when the request has ended: a caller that leaves early is recorded, too.
func (g *Gate) record(ctx context.Context, r Refusal, detail string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := g.options.Ledger.RecordRefusal(ctx, store.Event{Actor: r.Principal, Detail: detail}); err != nil {
		g.options.Log.WarnContext(ctx, "event of a refusal not written", "err", err)
	}
}

// short bounds a stranger's text in the log.
func short(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

// Package gate is where those are met who may not do what they ask for: it slows
// down who guesses tokens of operators, and tells of everybody that was refused.
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
	"github.com/fleetslots/dispatcher/store"
)

// At is where somebody was refused.
type At string

// The slots. At the first two operators are refused, which is also an event.
const (
	API    At = "api"
	SignIn At = "sign_in"
	Report At = "report" // over HTTP
	Broker At = "broker" // a device's session at the embedded broker
)

// Reason is why.
type Reason string

// The reasons.
const (
	Unauthenticated Reason = "unauthenticated" // nobody has that token, or there was none
	Forbidden       Reason = "forbidden"       // it is known, and may not do that
	LockedOut       Reason = "locked_out"      // too many wrong ones came from the address
	Unavailable     Reason = "unavailable"     // could not be found out
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
	What      string     // it asked for
	Guess     bool       // it brought a token that nobody has
}

// Ledger keeps events; *store.Store.
type Ledger interface {
	RecordRefusal(ctx context.Context, e store.Event) error
}

// Options set up a Gate.
type Options struct {
	Log     *slog.Logger
	Ledger  Ledger
	Proxies []netip.Prefix   // whose X-Forwarded-For is believed; none: nobody's
	Guesses int              // wrong tokens after which an address is locked out; default 10
	Now     func() time.Time // default time.Now
}

// Gate is that of one replica. It collects dispatcher_refusals_total.
type Gate struct {
	*prometheus.CounterVec

	options Options
	guesses *guesses
	samples samples
}

// New returns a gate that has refused nobody.
func New(o Options) *Gate {
	if o.Now == nil {
		o.Now = time.Now
	}
	g := &Gate{
		CounterVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dispatcher_refusals_total", Help: "Requests and sessions that were refused for who asked.",
		}, []string{"at", "reason"}),
		options: o, guesses: newGuesses(o.Now, cmp.Or(o.Guesses, mostGuesses)), samples: samples{now: o.Now, of: map[group]*kinds{}},
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

// Wait is how long that address must not try that token; 0: it may.
func (g *Gate) Wait(from netip.Addr, token string) time.Duration { return g.guesses.wait(from, token) }

// Right notes that an operator's token was accepted from there.
func (g *Gate) Right(from netip.Addr, token string) { g.guesses.right(from, token) }

// Refuse counts a refusal. The first of its kind in a minute is logged and, of an
// operator, an event; the next one says how many were left out.
func (g *Gate) Refuse(ctx context.Context, r Refusal) {
	g.tell(ctx, r)
	if r.Guess && g.guesses.wrong(r.From) {
		r.Reason, r.What = LockedOut, "too many wrong tokens"
		g.tell(ctx, r)
	}
}

// RefuseReport is Refuse of a report over HTTP.
func (g *Gate) RefuseReport(r *http.Request, device string, err error) {
	g.Refuse(r.Context(), Refusal{At: Report, Reason: ReasonOf(err), Principal: device, From: g.From(r), What: "report"})
}

// ReasonOf is why a device was refused with an error.
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
	attributes := []any{"at", r.At, "reason", r.Reason, "principal", r.Principal, "from", from, "what", short(r.What)}
	if leftOut > 0 {
		attributes = append(attributes, "left_out", leftOut)
	}
	g.options.Log.WarnContext(ctx, "refused", attributes...)
	if r.At == API || r.At == SignIn {
		g.record(ctx, r, fmt.Sprintf("at=%s reason=%s from=%s left_out=%d what=%s", r.At, r.Reason, from, leftOut, short(r.What)))
	}
}

// record goes on when the request has ended: leaving early must hide nobody.
func (g *Gate) record(ctx context.Context, r Refusal, detail string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := g.options.Ledger.RecordRefusal(ctx, store.Event{Actor: r.Principal, Detail: detail}); err != nil {
		g.options.Log.WarnContext(ctx, "event of a refusal not written", "err", err)
	}
}

// short bounds what a stranger has written in the log.
func short(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

// Package mqtt takes the reports of devices from an MQTT 3.1.1 broker with
// shared subscriptions and publishes the replies: the transport, no decision.
//
// Every report is acknowledged to the broker (PUBACK) once its answer is on
// the way, or once it was dropped and counted. A broker lets only some be open
// (mosquitto: 20), so none is for longer than Options.Patience: its device is
// told `unavailable`, and gets the true answer when there is one. Nothing here is needed
// for safety: what is lost on the way is sent again by the device.
package mqtt

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Event is something worth counting.
type Event string

// The events.
const (
	EventReport        Event = "report"         // a report was handled
	EventRetained      Event = "retained"       // a retained report was dropped
	EventBadTopic      Event = "bad_topic"      // a message without a valid device was dropped
	EventBusy          Event = "busy"           // a queue was full: answered busy_server
	EventSlow          Event = "slow"           // handled, or waiting behind one that is, for longer than Patience: answered unavailable
	EventReplyLost     Event = "reply_lost"     // a reply was dropped: not connected, or the broker is too slow
	EventPanic         Event = "panic"          // the handler panicked: answered unavailable
	EventConnected     Event = "connected"      // connected and subscribed
	EventSubscribeFail Event = "subscribe_fail" // the broker refused the subscription, or did not answer
)

// unhandled is how a report is counted that did not come to the handler, or not
// whole; empty: it did.
func (e Event) unhandled() string {
	switch e {
	case EventRetained, EventBadTopic:
		return string(e)
	case EventBusy:
		return devices.CodeBusyServer
	case EventSlow, EventPanic:
		return devices.CodeUnavailable
	}
	return ""
}

// Options of a Client. URL and Handler are required.
type Options struct {
	URL            string      // mqtt://host[:port], tcp://host[:port] or mqtts://host[:port]
	User, Password string      // may be empty
	TLS            *tls.Config // for mqtts; nil = the system's roots
	ClientIDPrefix string      // a random suffix follows; default "dispatcher-"
	Group          string      // of the shared subscription; default devices.Group

	Workers       int           // goroutines that handle reports; default 32
	Queue         int           // reports waiting for each of them; default 64
	HandleTimeout time.Duration // after it, the context of a report's handling ends; default 10 s
	Patience      time.Duration // after it, a report whose handling goes on is answered unavailable; default 3 s
	KeepAlive     time.Duration // a replica that hangs is given up after 1.5 of it, a silent broker after 1.75; whole seconds; default 10 s
	BusyAfter     time.Duration // report_after of a device that is refused here, +- 50 %; default 10 s

	Handler devices.Handler // called from several goroutines, for one device in the order of arrival
	Logger  *slog.Logger    // default: none
	Count   func(Event)     // called from many goroutines, must not block; default: none

	Panicked rescue.Told // default: nobody
}

// withDefaults returns complete options; the error names what is wrong.
func (o Options) withDefaults() (Options, error) {
	if o.Handler == nil {
		return o, errors.New("mqtt: a handler is required")
	}
	broker, err := parseURL(o.URL)
	if err != nil {
		return o, err
	}
	o.URL = broker
	o.ClientIDPrefix = withDefault(o.ClientIDPrefix, "dispatcher-")
	o.Group = withDefault(o.Group, devices.Group)
	o.Workers = withDefault(o.Workers, 32)
	o.Queue = withDefault(o.Queue, 64)
	o.HandleTimeout = withDefault(o.HandleTimeout, 10*time.Second)
	o.Patience = withDefault(o.Patience, 3*time.Second)
	o.KeepAlive = withDefault(o.KeepAlive, 10*time.Second)
	o.BusyAfter = withDefault(o.BusyAfter, 10*time.Second)
	if o.Workers < 0 || o.Queue < 0 || o.HandleTimeout < 0 || o.Patience < 0 || o.KeepAlive < 0 || o.BusyAfter < 0 {
		return o, errors.New("mqtt: workers, queue and times must be positive")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	count := o.Count
	o.Count = func(e Event) {
		if reason := e.unhandled(); reason != "" {
			o.Handler.CountReport(transport, reason, 0)
		}
		if count != nil {
			count(e)
		}
	}
	return o, nil
}

func withDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// parseURL checks the broker's URL and adds the port. Its errors never repeat
// the URL, which may carry a password.
func parseURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" {
		return "", errors.New("mqtt: the URL must be mqtt://host[:port], tcp://host[:port] or mqtts://host[:port]")
	}
	ports := map[string]string{"mqtt": "1883", "tcp": "1883", "mqtts": "8883"}
	port, ok := ports[u.Scheme]
	if !ok {
		return "", fmt.Errorf("mqtt: the URL's scheme must be mqtt, tcp or mqtts, not %q", u.Scheme)
	}
	u.Host = net.JoinHostPort(u.Hostname(), withDefault(u.Port(), port))
	u.Path = ""
	return u.String(), nil
}

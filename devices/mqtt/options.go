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
	"cmp"
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

// KeepAlive is that of a client of the broker: one that hangs is given up after 1.5 of it.
const KeepAlive = 10 * time.Second

// Options of a Client. URL and Handler are required.
type Options struct {
	URL            string      // mqtt://host[:port], tcp://host[:port] or mqtts://host[:port]
	User, Password string      // may be empty
	TLS            *tls.Config // for mqtts; nil = the system's roots
	Group          string      // of the shared subscription; default devices.Group

	Workers       int           // goroutines that handle reports; default 32
	Queue         int           // reports waiting for each of them; default 64
	HandleTimeout time.Duration // after it, the context of a report's handling ends; default 10 s
	Patience      time.Duration // after it, a report whose handling goes on is answered unavailable; default 3 s
	KeepAlive     time.Duration // a replica that hangs is given up after 1.5 of it, a silent broker after 1.75; whole seconds; default 10 s
	BusyAfter     time.Duration // report_after of a device that is refused here, +- 50 %; default 10 s

	Handler   devices.Handler // called from several goroutines, for one device in the order of arrival
	Logger    *slog.Logger    // default: none
	Connected func()          // called when reports begin to arrive, or do again; default: none

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
	o.URL = broker.String()
	o.Group = cmp.Or(o.Group, devices.Group)
	o.Workers = cmp.Or(o.Workers, 32)
	o.Queue = cmp.Or(o.Queue, 64)
	o.HandleTimeout = cmp.Or(o.HandleTimeout, 10*time.Second)
	o.Patience = cmp.Or(o.Patience, 3*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, KeepAlive)
	o.BusyAfter = cmp.Or(o.BusyAfter, 10*time.Second)
	if o.Workers < 0 || o.Queue < 0 || o.HandleTimeout < 0 || o.Patience < 0 || o.KeepAlive < 0 || o.BusyAfter < 0 {
		return o, errors.New("mqtt: workers, queue and times must be positive")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Connected == nil {
		o.Connected = func() {}
	}
	return o, nil
}

// parseURL checks the broker's URL and adds the port. Its errors never repeat
// the URL, which may carry a password.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" {
		return nil, errors.New("mqtt: the URL must be mqtt://host[:port], tcp://host[:port] or mqtts://host[:port]")
	}
	ports := map[string]string{"mqtt": "1883", "tcp": "1883", "mqtts": "8883"}
	port, ok := ports[u.Scheme]
	if !ok {
		return nil, fmt.Errorf("mqtt: the URL's scheme must be mqtt, tcp or mqtts, not %q", u.Scheme)
	}
	u.Host = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	u.Path = ""
	return u, nil
}

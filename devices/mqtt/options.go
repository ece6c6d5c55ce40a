// Package mqtt is the MQTT transport: it receives the reports of devices from an MQTT 3.1.1 broker with a shared subscription and publishes
// the replies. It decides nothing about tasks. It refuses a report itself if the report is above the rate of its device, finds no room in a
// queue, or takes too long.
//
// A report is acknowledged to the broker (PUBACK) when its reply was handed to the connection or lost, or when the report was refused or
// dropped. A broker limits the number of unacknowledged messages (mosquitto: 20). So a report that is not handled within Options.Patience,
// and the reports that wait behind it, are acknowledged and answered with `unavailable`. The first report still gets its real reply later.
// Safety does not depend on this package, because the device repeats a lost report.
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
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// KeepAlive is the default keepalive of a client. The broker gives up a silent client after 1.5 keepalives.
const KeepAlive = 10 * time.Second

// Options configures a Client. URL and Handler are required.
type Options struct {
	URL            string      // mqtt://host[:port], tcp://host[:port] or mqtts://host[:port]
	User, Password string      // account at the broker; may be empty
	TLS            *tls.Config // for mqtts. If it is nil, the system's root certificates are used.
	Group          string      // name of the shared subscription; default devices.DefaultGroup, which the rights at the broker need

	Workers       int           // number of goroutines that handle reports; default 32
	Queue         int           // maximum number of reports that wait for each worker; default 64
	HandleTimeout time.Duration // after this time, the context of a report's handling ends; default 10 s
	Patience      time.Duration // after this time, a report that is still being handled is answered with unavailable; default 3 s
	KeepAlive     time.Duration // in whole seconds. A hanging replica is given up after 1.5 keepalives, a silent broker after 1.75. Default 10 s
	BusyAfter     time.Duration // report_after_ms of a device that this package refuses, +- 50 %; default 10 s

	Pace        *pace.Limiter   // refuses the excess reports of a device, counted for each Via; nil means no limit
	Handler     devices.Handler // called concurrently, but for one device in the order of arrival
	Logger      *slog.Logger    // default: no log
	OnConnected func()          // called after each successful subscription, when reports begin to arrive; optional

	Panicked rescue.PanicHandler // called after a panic; optional
}

func (o Options) withDefaults() (Options, error) {
	if o.Handler == nil {
		return o, errors.New("mqtt: a handler is required")
	}
	broker, err := parseURL(o.URL)
	if err != nil {
		return o, err
	}
	o.URL = broker.String()
	o.Group = cmp.Or(o.Group, devices.DefaultGroup)
	o.Workers = cmp.Or(o.Workers, 32)
	o.Queue = cmp.Or(o.Queue, 64)
	o.HandleTimeout = cmp.Or(o.HandleTimeout, 10*time.Second)
	o.Patience = cmp.Or(o.Patience, 3*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, KeepAlive)
	o.BusyAfter = cmp.Or(o.BusyAfter, 10*time.Second)
	if o.Workers < 0 || o.Queue < 0 || o.HandleTimeout < 0 || o.Patience < 0 || o.KeepAlive < 0 || o.BusyAfter < 0 {
		return o, errors.New("mqtt: workers, queue and times must not be negative")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnConnected == nil {
		o.OnConnected = func() {}
	}
	return o, nil
}

// parseURL returns the broker's URL with a port. Its errors never repeat the URL, because it may contain a password.
func parseURL(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
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

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/operators/web"
)

// listeners are the open ports of a process. They are bound before anything else starts. If the field operator is nil, the listener in the
// field device also serves operators.
type listeners struct {
	device, operator net.Listener
}

// transports holds the HTTP servers and the MQTT client. Before useHandlers is called, the servers answer requests with
// the handler in the field starting.
type transports struct {
	servers  []*server    // server of the devices, then the server of the operators if there is a separate one
	mqtt     *mqtt.Client // nil if MQTT is off
	starting *api.StartingHandler
	failed   chan error // errors of servers that ended by themselves
}

func newTransports(ports listeners, log *slog.Logger) *transports {
	f := &transports{starting: &api.StartingHandler{}, failed: make(chan error, 2)}
	for _, listener := range []net.Listener{ports.device, ports.operator} {
		if listener != nil {
			f.servers = append(f.servers, newServer(listener, f.starting, f.failed, log))
		}
	}
	return f
}

// start starts the HTTP servers. Further calls do nothing.
func (f *transports) start() {
	for _, s := range f.servers {
		s.start()
	}
}

// startAll starts the HTTP servers and the MQTT client.
func (f *transports) startAll(ctx context.Context) error {
	f.start()
	if f.mqtt != nil {
		if err := f.mqtt.Start(ctx); err != nil {
			return fmt.Errorf("starting MQTT: %w", err)
		}
	}
	return nil
}

// useHandlers makes the servers answer with operatorAPI and dashboard. If there is a separate server for operators, the server of the devices
// serves only the paths of devices and load balancers. dashboard is nil if it is off.
func (f *transports) useHandlers(operatorAPI *api.API, dashboard *web.Web) {
	operators := operatorAPI.Handler()
	if dashboard != nil {
		operators = dashboard.Handler(operators)
	}
	handlers := []http.Handler{operators}
	if len(f.servers) > 1 {
		handlers = []http.Handler{operatorAPI.DeviceHandler(), operators}
	}
	for i, s := range f.servers {
		s.setHandler(handlers[i])
	}
}

// Failed returns a channel that delivers the error of a listener that ended by itself.
func (f *transports) Failed() <-chan error { return f.failed }

// drain stops all transports concurrently and finishes their requests.
func (f *transports) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainGrace)
	defer cancel()
	var ends []<-chan error
	for _, s := range f.servers {
		ends = append(ends, rescue.Async(func() error { return s.stop(ctx) }))
	}
	if f.mqtt != nil {
		ends = append(ends, rescue.Async(func() error { return f.mqtt.Stop(ctx) }))
	}
	var failed error
	for _, end := range ends {
		failed = errors.Join(failed, <-end)
	}
	return failed
}

// Addr returns the address at which devices report over HTTP.
func (f *transports) Addr() string { return f.servers[0].listener.Addr().String() }

// mqttState returns off, connecting or connected. The client logs a broker that refuses the connection.
func (f *transports) mqttState() string {
	switch {
	case f.mqtt == nil:
		return "off"
	case f.mqtt.Connected():
		return "connected"
	}
	return "connecting"
}

// server is one HTTP listener with its server.
type server struct {
	listener  net.Listener
	http      *http.Server
	handler   atomic.Pointer[http.Handler]
	inFlight  atomic.Int64 // number of requests that are not answered yet
	startOnce sync.Once
	failed    chan<- error // receives the error when the server ends by itself; buffered, so that sending does not block
}

// newServer creates a server with all time and size limits, because net/http has none by default. failed receives the error if the server
// ends by itself.
func newServer(listener net.Listener, handler http.Handler, failed chan<- error, log *slog.Logger) *server {
	s := &server{listener: listener, failed: failed}
	s.setHandler(handler)
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serveRequest),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second, // operations with large bodies set their own limit
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       75 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s
}

func (s *server) setHandler(handler http.Handler) { s.handler.Store(&handler) }

func (s *server) serveRequest(response http.ResponseWriter, request *http.Request) {
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	(*s.handler.Load()).ServeHTTP(response, request)
}

// start begins to serve. Further calls do nothing.
func (s *server) start() {
	s.startOnce.Do(func() {
		rescue.Async(func() error {
			err := rescue.Call(func() error { return s.http.Serve(s.listener) })
			if !errors.Is(err, http.ErrServerClosed) {
				s.failed <- fmt.Errorf("serving on %s: %w", s.listener.Addr(), err)
			}
			return nil
		})
	})
}

// stop finishes the requests in flight and closes the listener. Requests that are not answered when ctx ends are cut off.
func (s *server) stop(ctx context.Context) error {
	defer s.listener.Close()
	if err := s.http.Shutdown(ctx); err != nil {
		return fmt.Errorf("closing %s with %d unanswered requests: %w", s.listener.Addr(), s.inFlight.Load(), errors.Join(err, s.http.Close()))
	}
	return nil
}

// Wake asks a device that is connected over MQTT to report now. reservedFor is the time for which a slot is reserved for the
// device. If reservedFor is 0, no slot is reserved.
func (a *App) Wake(device devices.ID, reservedFor time.Duration) {
	if a.mqtt != nil {
		a.mqtt.Wake(device, reservedFor)
	}
}

// authenticateReport returns the caller that the token of a report identifies. The gate limits attempts with wrong
// tokens. If the token is in the cache as the device's own token, the gate is not asked, so wrong tokens of other clients
// cannot block the device.
func (a *App) authenticateReport(r *http.Request, device devices.ID, token string) (caller devices.Caller, err error) {
	if caller, ok := a.dispatcher.Devices.AuthenticateFromCache(device, token); ok {
		return caller, nil
	}
	err = a.gate.CheckReportToken(r, device, token, func(ctx context.Context) (err error) {
		caller, err = a.dispatcher.Authenticate(ctx, device, token)
		return err
	})
	return caller, err
}

// refuseSession tells the gate that the embedded broker refused the session of a device.
func (a *App) refuseSession(ctx context.Context, refused broker.RefusedSession) {
	refusal := gate.Refusal{EntryPoint: gate.Broker, Reason: gate.ReasonOf(refused.Err), Principal: refused.User, IsDevice: true, Detail: refused.Err.Error()}
	if remote, err := netip.ParseAddrPort(refused.Remote); err == nil {
		refusal.From = remote.Addr().Unmap()
	}
	a.gate.CountRefusal(ctx, refusal)
}

// Package rig runs one replica in the process of a test: a dispatcher on real stores, with the operators' API and the
// reports of devices behind a listener on the loopback.
package rig

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/slots"
)

// The tokens of a replica.
const (
	AdminToken = "admin-token-of-the-tests"
	FleetToken = "fleet-token-of-the-tests"
)

// Options are the settings of a replica that a test may change before the replica starts.
type Options struct {
	API        api.Options
	Dispatcher dispatcher.Config
	Reports    devicehttp.Options
	// Handler returns the handler of the listener. If it is nil, the listener serves the API only.
	Handler func(*api.API) http.Handler
}

// Rig is a running replica. Other replicas may use the same Stores.
type Rig struct {
	Client
	Stores
	Redis      redis.UniversalClient
	Semaphore  *slots.Semaphore
	Dispatcher *dispatcher.Dispatcher
	API        *api.API
	Server     *httptest.Server
}

// Start starts a replica on these stores. Only a broken test reaches the timeouts of the replica.
func Start(t *testing.T, at Stores, changes ...func(*Options)) *Rig {
	t.Helper()
	client := backends.OpenRedis(t, at.RedisAt).Client
	r := &Rig{Stores: at, Redis: client, Semaphore: slots.New(client)}
	o := r.defaultOptions()
	for _, change := range changes {
		change(&o)
	}
	r.Dispatcher = dispatcher.New(o.Dispatcher)
	o.API.Dispatcher = r.Dispatcher
	o.Reports.Handler, o.Reports.Logger, o.Reports.OnRefused, o.Reports.AddressOf = r.Dispatcher, o.API.Logger, o.API.Gate.CountReportRefusal, o.API.Gate.ClientAddress
	o.API.Reports = devicehttp.New(o.Reports)
	r.API = api.New(o.API)
	handler := r.API.Handler()
	if o.Handler != nil {
		handler = o.Handler(r.API)
	}
	r.Server = httptest.NewServer(handler)
	t.Cleanup(r.Server.Close)
	r.Client = NewClient(t, r.Server.URL, AdminToken, FleetToken)
	return r
}

func (r *Rig) defaultOptions() Options {
	recent, metrics := seen.NewList(r.Redis), prometheus.NewRegistry()
	return Options{
		API: api.Options{
			Store: r.Ledger, Recent: recent, AdminToken: AdminToken, LeaseMin: time.Second, LongPollMax: time.Minute, AnswerTimeout: backends.LongTimeout, Metrics: metrics, MetricsMaxAge: time.Nanosecond, Version: "test",
			Gate:   gate.New(gate.Options{Log: slog.New(slog.DiscardHandler), Ledger: r.Ledger, MaxGuesses: math.MaxInt}),
			Logger: slog.New(slog.DiscardHandler),
			Checks: []api.Check{
				{Name: "postgres", Required: true, Probe: r.Ledger.Ping},
				{Name: "redis", Probe: func(ctx context.Context) error { return r.Redis.Ping(ctx).Err() }},
			},
		},
		Dispatcher: dispatcher.Config{
			Store: r.Ledger, Semaphore: r.Semaphore, Limits: policies.NewLimits(limits.New(r.Redis)), Recent: recent, LeaseMargin: 10 * time.Second, Registerer: metrics,
			FleetTokens: []string{FleetToken}, Jitter: func() float64 { return 0.5 },
		},
	}
}

package app

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/web"
	"github.com/fleetslots/dispatcher/store"
)

func (a *App) newWeb(servers backends, version string) *web.Web {
	if a.config.Web == webOff {
		return nil
	}
	return web.New(web.Options{
		API: a.api, Ledger: servers.store, AdminToken: a.config.AdminToken, Prefix: a.config.WebPrefix, Gate: a.gate,
		ReadOnly: a.config.Web == webReadOnly, Link: servers.signInLink, ReportPeriod: a.config.ReportPeriod,
		System: a.systemInfo(servers, version), Logger: throttle.NewLogger(a.log, time.Now), Panicked: a.dispatcher.Panicked,
	})
}

// systemInfo returns the data of the system page about this replica.
func (a *App) systemInfo(servers backends, version string) web.System {
	s := web.System{Mode: "production", ID: a.presence.id, Version: version, Checks: a.api.Dependencies, Passes: func() []web.Pass { return a.passes.webPasses() }, Settings: a.config.webSettings()}
	if servers.dev {
		s.Mode = "dev"
	}
	return s
}

func (p *passes) webPasses() []web.Pass {
	list := make([]web.Pass, len(p.all))
	for i, one := range p.all {
		list[i] = one.webPass()
	}
	return list
}

func (o *pass) webPass() web.Pass {
	o.mu.Lock()
	defer o.mu.Unlock()
	shown := web.Pass{Name: o.name, Every: o.every, Failed: o.failed}
	if good := o.lastGood; !good.IsZero() {
		shown.LastGood = &good
	}
	return shown
}

// webSettings returns the settings for the system page, without secrets.
func (c Config) webSettings() []web.Setting {
	values, err := c.settingValues()
	if err != nil {
		return nil
	}
	var list []web.Setting
	for _, s := range Settings() {
		value := fmt.Sprint(values[s.Key])
		if s.Secret && value != "" {
			value = redacted
		}
		list = append(list, web.Setting{Key: s.Key, Value: value, Help: s.Help})
	}
	return list
}

// replicaPresence records this replica in the ledger, where the other replicas read it.
type replicaPresence struct {
	ledger  *store.Store
	id      string // id of this process
	host    string
	version string
	started time.Time
}

// newReplicaPresence returns the presence of this process, with a new random id. started is the time at which the process started.
func newReplicaPresence(ledger *store.Store, version string, started time.Time) *replicaPresence {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return &replicaPresence{ledger: ledger, id: rand.Text(), host: host, version: version, started: started}
}

func (a *App) recordHeartbeat(ctx context.Context) error {
	failed, reaped := a.passes.failedPassesAndLastSuccess("reap")
	state, err := json.Marshal(web.Heartbeat{Checks: dependencyStates(a.api.Dependencies(ctx)), Failed: failed, ReapMS: a.config.ReapInterval.Milliseconds()})
	if err != nil {
		return err
	}
	counts, err := json.Marshal(a.dispatcher.Tallies())
	if err != nil {
		return err
	}
	p, now := a.presence, a.passes.now()
	heartbeat := store.Heartbeat{ID: p.id, Host: p.host, Address: a.Addr(), Version: p.version, Uptime: now.Sub(p.started), State: state, Tallies: counts}
	if !reaped.IsZero() {
		ago := now.Sub(reaped)
		heartbeat.SinceReap = &ago
	}
	return p.ledger.RecordHeartbeat(ctx, heartbeat)
}

func dependencyStates(dependencies []api.Dependency) (stateByName map[string]string) {
	all := make(map[string]string, len(dependencies))
	for _, d := range dependencies {
		all[d.Name] = d.State
	}
	return all
}

// removePresence removes this replica from the ledger. If that fails, the row stays in the ledger without new heartbeats.
func (a *App) removePresence(ctx context.Context) {
	if err := runWithin(ctx, func(ctx context.Context) error { return a.presence.ledger.RemoveReplica(ctx, a.presence.id) }); err != nil {
		a.log.DebugContext(ctx, "row of this replica not removed; it expires", "err", err)
	}
}

// failedPassesAndLastSuccess returns the names of the passes whose last run failed. lastSuccess is the time at which the pass
// passName last ended without an error. The zero time means that there is no such run.
func (p *passes) failedPassesAndLastSuccess(passName string) (failed []string, lastSuccess time.Time) {
	for _, shown := range p.webPasses() {
		if shown.Failed {
			failed = append(failed, shown.Name)
		}
		if shown.Name == passName && shown.LastGood != nil {
			lastSuccess = *shown.LastGood
		}
	}
	return failed, lastSuccess
}

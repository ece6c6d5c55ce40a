package app

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/web"
	"github.com/fleetslots/dispatcher/internal/throttle"
)

// newWeb wires the dashboard; nil: it is off.
func (a *App) newWeb(b backends, version string) *web.Web {
	if a.config.Web == webOff {
		return nil
	}
	return web.New(web.Options{
		API: a.api, Ledger: b.store, AdminToken: a.config.AdminToken, Prefix: a.config.WebPrefix, Gate: a.gate,
		ReadOnly: a.config.Web == webReadOnly, Link: b.link, Period: a.config.ReportPeriod,
		System: a.system(b, version), Logger: throttle.Log(a.log, time.Now), Panicked: a.dispatcher.Panicked,
	})
}

// Reading the last hour takes at most recallTime. A failed reading is
// retried after recallAgain.
const (
	recallTime  = 30 * time.Second
	recallAgain = 10 * time.Second
)

// recall loads the hour before this process began into the dashboard.
func (a *App) recall(ctx context.Context) {
	if a.web == nil {
		return
	}
	again := time.NewTicker(recallAgain)
	defer again.Stop()
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, recallTime)
			defer cancel()
			return a.web.Recall(ctx)
		}()
		if err == nil || ctx.Err() != nil {
			return
		}
		a.log.WarnContext(ctx, "the charts begin empty, to be tried again", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// system is the content of the system page about this replica.
func (a *App) system(b backends, version string) web.System {
	s := web.System{Mode: "production", ID: a.presence.id, Version: version, Checks: a.api.Dependencies, Passes: func() []web.Pass { return a.passes.shown() }, Settings: a.config.shown()}
	if b.dev {
		s.Mode = "dev"
	}
	return s
}

// shown are the passes for people.
func (p *passes) shown() []web.Pass {
	list := make([]web.Pass, len(p.all))
	for i, one := range p.all {
		list[i] = one.shown()
	}
	return list
}

func (o *pass) shown() web.Pass {
	o.mu.Lock()
	defer o.mu.Unlock()
	shown := web.Pass{Name: o.name, Every: o.every, Failed: o.failed}
	if good := o.good; !good.IsZero() {
		shown.LastGood = &good
	}
	return shown
}

// shown is the configuration for people, without its secrets.
func (c Config) shown() []web.Setting {
	values, err := c.values()
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

package app

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/web"
	"github.com/fleetslots/dispatcher/store"
)

type presenceStore interface {
	RecordHeartbeat(ctx context.Context, beat store.Heartbeat) error
	RemoveReplica(ctx context.Context, id string) error
}

// presence tells the other replicas of this one.
type presence struct {
	ledger  presenceStore
	id      string // of this process
	host    string
	version string
	started time.Time
}

func newPresence(ledger presenceStore, version string, started time.Time) *presence {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return &presence{ledger: ledger, id: rand.Text(), host: host, version: version, started: started}
}

// sign gives a sign of life.
func (a *App) sign(ctx context.Context) error {
	failed, reaped := a.passes.state("reap")
	state, err := json.Marshal(web.Heartbeat{Checks: a.api.Dependencies(ctx), Failed: failed, ReapMS: a.config.ReapInterval.Milliseconds()})
	if err != nil {
		return err
	}
	counts, err := json.Marshal(a.dispatcher.Tallies())
	if err != nil {
		return err
	}
	p, now := a.presence, a.passes.now()
	sign := store.Heartbeat{ID: p.id, Host: p.host, Address: a.Addr(), Version: p.version, Running: now.Sub(p.started), State: state, Tallies: counts}
	if !reaped.IsZero() {
		ago := now.Sub(reaped)
		sign.Reaped = &ago
	}
	return p.ledger.RecordHeartbeat(ctx, sign)
}

// leave says that this replica ends. If it cannot, its row grows old.
func (a *App) leave(ctx context.Context) {
	if err := within(ctx, func(ctx context.Context) error { return a.presence.ledger.RemoveReplica(ctx, a.presence.id) }); err != nil {
		a.log.DebugContext(ctx, "the other replicas were not told of the end of this one", "err", err)
	}
}

// state names the passes whose last run failed, and says when one of them last
// ended well; zero: not yet.
func (p *passes) state(of string) (failed []string, good time.Time) {
	for _, one := range p.all {
		shown := one.shown()
		if shown.Failed {
			failed = append(failed, shown.Name)
		}
		if shown.Name == of && shown.LastGood != nil {
			good = *shown.LastGood
		}
	}
	return failed, good
}

package limits_test

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
)

// TestHistoriesWithRestartsAgreeWithAPlainModel is the same on a real Redis that is
// killed and started at any time: with what it had, with a snapshot of any time before,
// or without the tail of its log. Its data is then not taken as known by either replica until it was filled again,
// and then the model's answers are given. Reservations may come back that were decided
// long ago.
func TestHistoriesWithRestartsAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"snapshots": nil, "log": {"--appendonly", "yes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, left := servers.Redis(t, args...), 60 // each starts Redis some times
			if testing.Short() {
				left = 6
			}
			rapid.Check(t, func(rt *rapid.T) {
				if left--; left < 0 {
					return
				}
				defer func() {
					if rt.Failed() {
						left = 1 << 30 // it is run again until it is small
					}
				}()
				r := dial(t, server)
				defer func() { _ = r.direct.Close() }()
				m := &restarts{model: newModel(rt, r), r: r}
				moves := m.moves()
				moves["time passes"], moves["who was refused"] = m.pass, m.top
				if args == nil {
					moves["snapshot"], moves["redis is started anew"] = m.snapshot, m.older
				} else {
					r.logged = server.LogSize(t) // that of others is not to be cut
					moves["redis is started anew"] = m.cut
				}
				rt.Repeat(moves)
			})
		})
	}
}

// restarts is a model whose Redis is started with older data.
type restarts struct {
	*model

	r         *realRedis
	snapshots []snapshot
}

type snapshot struct {
	data []byte
	open []modelStart // reservations in it
}

func (m *restarts) snapshot(*rapid.T) {
	m.snapshots = append(m.snapshots, snapshot{m.r.Snapshot(m.r.tb), slices.Clone(m.open)})
}

// older starts Redis with what it has, or with any snapshot.
func (m *restarts) older(t *rapid.T) {
	m.snapshot(t)
	from := m.snapshots[rapid.IntRange(0, len(m.snapshots)-1).Draw(t, "snapshot")]
	m.r.restart(m.now, func() { m.r.Restore(m.r.tb, from.data) })
	m.known = false
	lost := slices.DeleteFunc(m.open, func(s modelStart) bool {
		return slices.ContainsFunc(from.open, func(o modelStart) bool { return o.lease == s.lease })
	})
	m.open = slices.Clone(from.open)
	if rapid.Bool().Draw(t, "filled first") {
		m.settle(t)
		m.rebuild(t)
	}
	for _, s := range lost { // who reserved it says so now, and finds no reservation
		m.decide(t, s, rapid.Bool().Draw(t, "started"), 1)
	}
}

// top only has to work: it is for people.
func (m *restarts) top(t *rapid.T) {
	if _, err := m.replica(t).Refusals.Top(context.Background(), "plain", 5); err != nil {
		t.Fatal(err)
	}
}

// pass lets the pass over the limits have its turn, which settles what is overdue: what
// comes back is known by its lease for a minute.
func (m *restarts) pass(t *rapid.T) {
	if slices.ContainsFunc(m.open, func(s modelStart) bool { _, back := m.decided[s.lease]; return back }) {
		m.advance(limits.SettleWithin)
		m.settle(t)
	}
	m.model.pass(t)
}

// cut starts Redis without the tail of its log, which may have torn the forms apart: so
// all reservations are decided at once, as the pass over the limits does.
func (m *restarts) cut(t *rapid.T) {
	lost := rapid.Int64Range(0, 3000).Draw(t, "lost")
	m.r.restart(m.now, func() { m.r.CutLog(m.r.tb, m.r.LogSize(m.r.tb)-lost, m.r.logged) })
	m.known = false
	for _, s := range m.open {
		s.group = ""
		m.decide(t, s, rapid.Bool().Draw(t, "started"), 1)
	}
	m.open = nil
	for form := range m.forms {
		left, err := m.r.direct.ZRange(context.Background(), "limits:{"+form+"}:open", 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, lease := range left {
			s, ok := m.decided[lease]
			if !ok { // a reservation that was given back, since Redis had been started anew
				s = modelStart{lease: lease, account: "a", at: m.now}
			}
			s.group = ""
			m.decide(t, s, s.counted, 1)
		}
	}
}

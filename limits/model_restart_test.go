package limits_test

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
)

// TestHistoriesWithRestartsAgreeWithAPlainModel runs the same histories on a real Redis that is
// killed and restarted at any time: with its latest data, with an earlier snapshot, or without the
// end of its log. After a restart no replica takes the data as known until the rules were filled
// again; then the answers equal the answers of the model. Reservations that were settled long ago
// can reappear.
func TestHistoriesWithRestartsAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"snapshots": nil, "log": {"--appendonly", "yes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, left := servers.Redis(t, args...), 60 // each history restarts Redis several times
			if testing.Short() {
				left = 6
			}
			rapid.Check(t, func(rt *rapid.T) {
				if left--; left < 0 {
					return
				}
				defer func() {
					if rt.Failed() {
						left = 1 << 30 // rapid repeats the failed history to shrink it
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
					r.logged = server.LogSize(t) // the log of earlier histories must not be cut
					moves["redis is started anew"] = m.cut
				}
				rt.Repeat(moves)
			})
		})
	}
}

// restarts is a model whose Redis is restarted with older data.
type restarts struct {
	*model

	r         *realRedis
	snapshots []snapshot
}

type snapshot struct {
	data []byte
	open []modelStart // reservations in the snapshot
}

func (m *restarts) snapshot(*rapid.T) {
	m.snapshots = append(m.snapshots, snapshot{m.r.Snapshot(m.r.tb), slices.Clone(m.open)})
}

// older restarts Redis with its latest data or with any snapshot.
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
	for _, s := range lost { // the process that reserved it settles it now, without a reservation
		m.decide(t, s, rapid.Bool().Draw(t, "started"), 1)
	}
}

// top only checks that Top succeeds, because its numbers are only for display.
func (m *restarts) top(t *rapid.T) {
	if _, err := m.replica(t).Refusals.Top(context.Background(), "plain", 5); err != nil {
		t.Fatal(err)
	}
}

// pass first lets the pass over the limits settle overdue reservations that have reappeared,
// because Redis keeps their leases for only one minute.
func (m *restarts) pass(t *rapid.T) {
	if slices.ContainsFunc(m.open, func(s modelStart) bool { _, back := m.decided[s.lease]; return back }) {
		m.advance(limits.SettleWithin)
		m.settle(t)
	}
	m.model.pass(t)
}

// cut restarts Redis without the end of its log. The forms of the rule can then differ, so all
// reservations are settled at once, as the pass over the limits does.
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
			if !ok { // a reservation that was released because Redis had been restarted
				s = modelStart{lease: lease, account: "a", at: m.now}
			}
			s.group = ""
			m.decide(t, s, s.counted, 1)
		}
	}
}

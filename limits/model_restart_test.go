package limits_test

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
)

// TestHistoriesWithRestartsAgreeWithAPlainModel runs the same histories on a real Redis that is killed and restarted at any time. It
// restarts with its latest data, with an earlier snapshot, or without the end of its log. After a restart, no replica may trust the rules
// in Redis until they were filled again. From then on, the answers of Redis must equal the answers of the model. Reservations that were
// settled long ago can reappear with older data.
func TestHistoriesWithRestartsAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"snapshots": nil, "log": {"--appendonly", "yes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, left := servers.StartRedis(t, args...), 60 // each history restarts Redis several times
			if testing.Short() {
				left = 6
			}
			rapid.Check(t, func(rt *rapid.T) {
				if left--; left < 0 {
					return
				}
				defer func() {
					if rt.Failed() {
						left = 1 << 30 // rapid runs the failed history again and again to shrink it
					}
				}()
				r := newRealRedis(t, server)
				defer func() { _ = r.directClient.Close() }()
				m := &restartModel{startsModel: newModel(rt, r), realRedis: r}
				moves := m.actions()
				moves["time passes"], moves["who was refused"] = m.passTime, m.checkTop
				if args == nil {
					moves["snapshot"], moves["redis is started anew"] = m.takeSnapshot, m.restartFromSnapshot
				} else {
					r.minLogBytes = server.LogSize(t) // the log of earlier histories must not be cut
					moves["redis is started anew"] = m.restartWithCutLog
				}
				rt.Repeat(moves)
			})
		})
	}
}

// restartModel is the plain model of a Redis that is restarted with older data.
type restartModel struct {
	*startsModel

	realRedis *realRedis
	snapshots []redisSnapshot
}

type redisSnapshot struct {
	data []byte
	open []modelStart // reservations that are open in the snapshot
}

func (m *restartModel) takeSnapshot(*rapid.T) {
	m.snapshots = append(m.snapshots, redisSnapshot{m.realRedis.Snapshot(m.realRedis.tb), slices.Clone(m.openStarts)})
}

// restartFromSnapshot restarts Redis with its latest data or with one of the earlier snapshots.
func (m *restartModel) restartFromSnapshot(t *rapid.T) {
	m.takeSnapshot(t)
	from := m.snapshots[rapid.IntRange(0, len(m.snapshots)-1).Draw(t, "snapshot")]
	m.realRedis.restart(m.now, func() { m.realRedis.Restore(m.realRedis.tb, from.data) })
	m.isKnown = false
	lost := slices.DeleteFunc(m.openStarts, func(s modelStart) bool {
		return slices.ContainsFunc(from.open, func(o modelStart) bool { return o.lease == s.lease })
	})
	m.openStarts = slices.Clone(from.open)
	if rapid.Bool().Draw(t, "filled first") {
		m.settleOverdue(t)
		m.rebuild(t)
	}
	for _, s := range lost { // the process that reserved the start settles it now, without a reservation
		m.settleStart(t, s, rapid.Bool().Draw(t, "started"), 1)
	}
}

// checkTop only checks that MostRefused returns no error. Its numbers are only for display and are not compared.
func (m *restartModel) checkTop(t *rapid.T) {
	_, err := m.drawReplica(t).Refusals.MostRefused(context.Background(), "plain", 5)
	must.Succeed(t, err)
}

// passTime advances the clock. If settled reservations have reappeared after a restart, it first waits until they are overdue and settles
// them, as the limits pass does. Otherwise such a start could be counted twice, because Redis keeps the leases of counted starts for only
// one minute.
func (m *restartModel) passTime(t *rapid.T) {
	if slices.ContainsFunc(m.openStarts, func(s modelStart) bool { _, back := m.settledStarts[s.lease]; return back }) {
		m.advanceClock(limits.SettleWithin)
		m.settleOverdue(t)
	}
	m.startsModel.passTime(t)
}

// restartWithCutLog restarts Redis without the end of its log. After that, Redis can have other reservations than the model. So
// restartWithCutLog settles all reservations at once, as the limits pass does.
func (m *restartModel) restartWithCutLog(t *rapid.T) {
	lost := rapid.Int64Range(0, 3000).Draw(t, "lost")
	m.realRedis.restart(m.now, func() {
		m.realRedis.CutLog(m.realRedis.tb, m.realRedis.LogSize(m.realRedis.tb)-lost, m.realRedis.minLogBytes)
	})
	m.isKnown = false
	for _, s := range m.openStarts {
		s.group = ""
		m.settleStart(t, s, rapid.Bool().Draw(t, "started"), 1)
	}
	m.openStarts = nil
	left, err := m.realRedis.directClient.ZRange(context.Background(), "limits:{"+modelScope+"}:open", 0, -1).Result()
	must.Succeed(t, err)
	for _, lease := range left {
		s, ok := m.settledStarts[lease]
		if !ok { // this reservation was released because Redis had been restarted
			s = modelStart{lease: lease, account: "a", at: m.now}
		}
		s.group = ""
		m.settleStart(t, s, s.counted, 1)
	}
}

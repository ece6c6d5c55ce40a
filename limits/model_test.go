package limits_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestHistoriesAgreeWithAPlainModel compares the limiter with a plain model, which keeps all starts and examines all of them for every
// answer. The histories contain any times and windows, calls that are sent again, two callers whose clocks change, and a Redis that loses
// all data. The Redis is the in-process Redis, with and without the expiry of keys.
func TestHistoriesAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rapid.Check(t, func(rt *rapid.T) {
		mini.FlushAll()
		rt.Repeat(newModel(rt, inProcessRedis{mini, t, rapid.Bool().Draw(rt, "ttl")}).actions())
	})
}

// modelScope is the scope of all rules of a model.
const modelScope = "s"

type startsModel struct {
	redis    modelRedis
	policy   policy.Policy
	zone     *time.Location
	rule     *limits.Rule
	replicas [2]replica
	now      time.Time
	leases   int
	isKnown  bool // Redis has not restarted since the rules were filled

	counted       []modelStart
	openStarts    []modelStart // open reservations in the order of their creation
	settledStarts map[string]modelStart
	windowStart   map[string]time.Time
	windowCount   map[string]int
}

// replica is a dispatcher process whose own clock may be wrong.
type replica struct {
	*redisLimiter

	clockError time.Duration
}

func (m *startsModel) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"time passes":     m.passTime,
		"caller's clock":  m.setCallerClock,
		"start":           m.reserveNew,
		"start again":     m.reserveAgain,
		"count":           m.countOpen,
		"release":         m.releaseOpen,
		"look":            m.checkLook,
		"redis loses all": m.wipeRedis,
		"unreserved":      m.countUnreserved,
	}
}

type modelStart struct {
	account, lease, group string
	at                    time.Time
	counted               bool // whether a settled start was counted
}

func newModel(t *rapid.T, r modelRedis) *startsModel {
	m := &startsModel{
		redis: r, policy: drawPolicy(t), isKnown: true,
		settledStarts: make(map[string]modelStart), windowStart: make(map[string]time.Time), windowCount: make(map[string]int),
	}
	m.now = rapid.SampledFrom([]time.Time{ // times before clock changes in Berlin (back, forward) and on Lord Howe (back, forward)
		time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC),
		time.Date(2026, 4, 4, 3, 0, 0, 0, time.UTC), time.Date(2026, 10, 3, 3, 0, 0, 0, time.UTC),
	}).Draw(t, "begin")
	r.setClock(m.now)
	for i := range m.replicas {
		one := &m.replicas[i]
		one.redisLimiter = r.connect()
		one.Limiter = limits.NewWithLocalClock(one.client, func() time.Time { return m.now.Add(one.clockError) })
	}
	m.rule = compileRules(t, m.policy)[0]
	m.zone, _ = time.LoadLocation(m.policy.Timezone)
	m.rebuild(t)
	return m
}

// drawReplica chooses one of the replicas at random.
func (m *startsModel) drawReplica(t *rapid.T) *limits.Limiter {
	return m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].Limiter
}

func (m *startsModel) passTime(t *rapid.T) {
	most := rapid.SampledFrom([]int64{3, 2000, 30_000, 5_000_000, 100_000_000}).Draw(t, "at most")
	d := time.Duration(rapid.Int64Range(0, most).Draw(t, "ms")) * time.Millisecond
	if rapid.Bool().Draw(t, "to an edge") {
		d = m.timeToEdge(t, d)
	}
	m.advanceClock(d)
}

// timeToEdge returns the time until one of the counted starts leaves a window, plus or minus a millisecond. If no start will leave a
// window, it returns the parameter otherwise.
func (m *startsModel) timeToEdge(t *rapid.T, otherwise time.Duration) time.Duration {
	pers := []int64{m.policy.PerMS}
	for _, w := range m.policy.Windows {
		pers = append(pers, w.PerMS)
	}
	var ends []time.Duration
	for _, s := range m.counted {
		for _, per := range pers {
			if left := s.at.Add(time.Duration(per) * time.Millisecond).Sub(m.now); left > time.Millisecond {
				ends = append(ends, left)
			}
		}
	}
	if len(ends) == 0 {
		return otherwise
	}
	return rapid.SampledFrom(ends).Draw(t, "end") + time.Duration(rapid.IntRange(-1, 1).Draw(t, "off"))*time.Millisecond
}

func (m *startsModel) advanceClock(d time.Duration) {
	m.now = m.now.Add(d)
	m.redis.setClock(m.now)
	m.redis.expireKeys(d)
}

func (m *startsModel) setCallerClock(t *rapid.T) {
	m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].clockError = time.Duration(rapid.Int64Range(-300_000_000, 300_000_000).Draw(t, "ms")) * time.Millisecond
}

// drawStart returns a random start with a new lease id.
func (m *startsModel) drawStart(t *rapid.T) modelStart {
	m.leases++
	group := "g" + strconv.Itoa(m.leases)
	return modelStart{
		account: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "account"),
		lease:   fmt.Sprintf("%d.1.%s", m.leases, group), group: group, at: m.now,
	}
}

func (m *startsModel) newChecks(s modelStart) []limits.Check {
	return []limits.Check{limits.NewCheck(s.lease, s.group, []*limits.Rule{m.rule}, accountFacts(s.account))}
}

// check sends the check of a start. If the rule is unknown, it is first filled from the history. If isLook is true, the check reserves nothing.
func (m *startsModel) check(t *rapid.T, s modelStart, isLook bool) limits.Answer {
	m.settleOverdue(t)
	replica := m.drawReplica(t)
	ask := replica.Reservations.Reserve
	if isLook {
		ask = replica.Reservations.Peek
	}
	for tries := 0; ; tries++ {
		answers, err := ask(context.Background(), modelScope, m.newChecks(s))
		must.Succeed(t, err)
		unknown := answers[0].Status == limits.StatusUnknown
		if !unknown && !m.isKnown {
			t.Fatalf("after a restart of Redis: %+v", answers[0])
		}
		if !unknown || tries > 0 || m.isKnown && !m.redis.canExpireKeys() { // the key of an idle rule may have expired
			return answers[0]
		}
		m.rebuild(t)
	}
}

func (m *startsModel) reserveNew(t *rapid.T) {
	m.checkReserve(t, m.drawStart(t))
}

// reserveAgain reserves an alternative of an open reservation (a check of the same group), or sends an open
// reservation again.
func (m *startsModel) reserveAgain(t *rapid.T) {
	m.settleOverdue(t)
	if len(m.openStarts) == 0 {
		return
	}
	s := rapid.SampledFrom(m.openStarts).Draw(t, "open")
	if rapid.Bool().Draw(t, "alternative") {
		m.leases++
		s.lease, s.at = fmt.Sprintf("%d.1.%s", m.leases, s.group), m.now
		m.checkReserve(t, s)
		return
	}
	if m.detectRestart(t); !m.isKnown {
		m.rebuild(t) // an open reservation passes even if its rule is unknown, which ask does not expect
	}
	if a := m.check(t, s, false); a.Status != limits.StatusPassed {
		t.Fatalf("%s sent again: %+v", s.lease, a)
	}
}

// detectRestart makes every replica detect that Redis has restarted. If a replica detected it only during a reservation, it would release
// the reservation before it asks again.
func (m *startsModel) detectRestart(t *rapid.T) {
	for _, r := range m.replicas {
		_, err := r.Reservations.Peek(context.Background(), modelScope, m.newChecks(modelStart{lease: "x"}))
		must.Succeed(t, err)
	}
}

func (m *startsModel) checkLook(t *rapid.T) {
	s := m.drawStart(t)
	m.compareAnswer(t, m.check(t, s, true), s)
}

func (m *startsModel) compareAnswer(t *rapid.T, a limits.Answer, s modelStart) {
	if got, want := answerText(a), m.expectedAnswer(s); got != want {
		t.Fatalf("start of %s at %s: %s, want %s", s.account, s.at, got, want)
	}
}

func (m *startsModel) checkReserve(t *rapid.T, s modelStart) {
	a := m.check(t, s, false)
	m.compareAnswer(t, a, s)
	if a.Status == limits.StatusPassed {
		m.openStarts = append(m.openStarts, s)
	}
}

func (m *startsModel) removeRandomOpen(t *rapid.T) (s modelStart, ok bool) {
	m.settleOverdue(t)
	if len(m.openStarts) == 0 {
		return s, false
	}
	i := rapid.IntRange(0, len(m.openStarts)-1).Draw(t, "which")
	s = m.openStarts[i]
	m.openStarts = slices.Delete(m.openStarts, i, i+1)
	return s, true
}

func (m *startsModel) countOpen(t *rapid.T) {
	if s, ok := m.removeRandomOpen(t); ok {
		m.settleStart(t, s, true, rapid.IntRange(1, 2).Draw(t, "sendings"))
	}
}

func (m *startsModel) releaseOpen(t *rapid.T) {
	if s, ok := m.removeRandomOpen(t); ok {
		m.settleStart(t, s, false, rapid.IntRange(1, 2).Draw(t, "sendings"))
	}
}

// settleStart counts the start s if hasStarted is true, and releases its reservation otherwise. If the start was settled before, it is
// settled again in the same way. Each settlement is sent as often as the parameter sendings says.
func (m *startsModel) settleStart(t *rapid.T, s modelStart, hasStarted bool, sendings int) {
	before, again := m.settledStarts[s.lease]
	if again {
		hasStarted = before.counted
	}
	replica := m.drawReplica(t)
	settle := replica.Reservations.Count
	if !hasStarted {
		settle = func(ctx context.Context, scope string, c []limits.Check, _ time.Duration) error {
			return replica.Reservations.Release(ctx, scope, c)
		}
	}
	m.sendSettlement(t, s, settle, sendings)
	if !again && hasStarted {
		m.countStart(s)
	}
	s.counted = hasStarted
	m.settledStarts[s.lease] = s
}

// countUnreserved counts a start that has no reservation.
func (m *startsModel) countUnreserved(t *rapid.T) {
	m.settleOverdue(t)
	m.check(t, modelStart{account: "z", lease: "z", group: "z"}, true) // this call makes the rule known
	s := m.drawStart(t)
	m.settleStart(t, s, true, 1)
}

func (m *startsModel) sendSettlement(t *rapid.T, s modelStart, settle func(context.Context, string, []limits.Check, time.Duration) error, sendings int) {
	for range sendings {
		must.Succeed(t, settle(context.Background(), modelScope, m.newChecks(s), m.now.Sub(s.at)))
	}
}

// settleOverdue settles all overdue reservations as starts that happened.
func (m *startsModel) settleOverdue(t *rapid.T) {
	isOverdue := func(s modelStart) bool { return m.now.Sub(s.at) >= limits.SettleWithin }
	if !slices.ContainsFunc(m.openStarts, isOverdue) {
		return
	}
	replica := m.drawReplica(t)
	a, err := replica.Reservations.Peek(context.Background(), modelScope, m.newChecks(modelStart{account: "a", lease: "x"}))
	if err != nil || a[0].Status != limits.StatusUnsettled {
		t.Fatalf("with overdue reservations: %+v, %v", a, err)
	}
	leases, err := replica.Reservations.Overdue(context.Background(), modelScope)
	for _, s := range m.openStarts {
		if err != nil || slices.Contains(leases, s.lease) != isOverdue(s) {
			t.Fatalf("overdue: %v, %v", leases, err)
		}
	}
	for _, s := range m.openStarts {
		if isOverdue(s) {
			s.group = ""
			m.settleStart(t, s, true, 1)
		}
	}
	m.openStarts = slices.DeleteFunc(m.openStarts, isOverdue)
}

// wipeRedis deletes all data of Redis. The reservations are lost, but the counted starts are still in the history.
func (m *startsModel) wipeRedis(t *rapid.T) {
	m.redis.flush()
	m.redis.setClock(m.now)
	m.rebuild(t)
	for _, s := range m.openStarts {
		s.at = m.now // the time of the reservation is lost, so the start counts from now on
		m.settleStart(t, s, true, 1)
	}
	m.openStarts = nil
}

func (m *startsModel) rebuild(t *rapid.T) {
	newest := slices.Clone(m.counted)
	slices.SortStableFunc(newest, func(a, b modelStart) int { return b.at.Compare(a.at) })
	past := func(_ context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for _, s := range newest {
				if ago := m.now.Sub(s.at); ago < within && !yield(limits.Start{Lease: s.lease, Ago: ago, Facts: accountFacts(s.account)}, nil) {
					return
				}
			}
		}
	}
	replica := m.drawReplica(t)
	known := false
	if a, err := replica.Reservations.Peek(context.Background(), modelScope, m.newChecks(modelStart{account: "a", lease: "x"})); err == nil {
		known = a[0].Status != limits.StatusUnknown && a[0].Status != limits.StatusUnsettled
	}
	must.Succeed(t, replica.Rebuilder.Rebuild(context.Background(), modelScope, []*limits.Rule{m.rule}, past))
	if !known && m.policy.Algorithm == policy.Fixed {
		m.assumeLatestWindows()
	}
	if !known { // the history contains the counted starts
		m.openStarts = slices.DeleteFunc(m.openStarts, func(s modelStart) bool { return m.settledStarts[s.lease].counted })
	}
	m.isKnown = true
}

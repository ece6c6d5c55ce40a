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

	"github.com/fleetslots/dispatcher/limits"
)

// TestHistoriesAgreeWithAPlainModel compares the limiter with a model that keeps all starts and
// examines each of them. The histories contain any times and windows, calls that are sent again,
// two callers whose clocks change, and a Redis that loses all data. Sliding rules are compared as
// packed times, as lists, and without the shortcut for one window, so these forms must agree, too.
// The Redis is the in-process Redis, with and without the expiry of keys.
func TestHistoriesAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rapid.Check(t, func(rt *rapid.T) {
		mini.FlushAll()
		rt.Repeat(newModel(rt, inProcess{mini, t, rapid.Bool().Draw(rt, "ttl")}).moves())
	})
}

type model struct {
	redis    modelRedis
	policy   limits.Policy
	zone     *time.Location
	forms    map[string]*limits.Rule // scope -> the rule in this form
	replicas [2]replica
	now      time.Time
	leases   int
	known    bool // whether Redis has not restarted since the rules were filled

	counted []modelStart
	open    []modelStart // open reservations in the order of their creation
	decided map[string]modelStart
	since   map[string]time.Time
	n       map[string]int
}

// replica is a process whose clock may be wrong.
type replica struct {
	*server

	clock time.Duration
}

func (m *model) moves() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"time passes":     m.pass,
		"caller's clock":  m.step,
		"start":           m.start,
		"start again":     m.startAgain,
		"count":           m.count,
		"release":         m.release,
		"look":            m.look,
		"redis loses all": m.wipe,
		"unreserved":      m.unreserved,
	}
}

type modelStart struct {
	account, lease, group string
	at                    time.Time
	counted               bool // whether a settled start was counted
}

func newModel(t *rapid.T, r modelRedis) *model {
	m := &model{
		redis: r, policy: drawPolicy(t), forms: make(map[string]*limits.Rule), known: true,
		decided: make(map[string]modelStart), since: make(map[string]time.Time), n: make(map[string]int),
	}
	m.now = rapid.SampledFrom([]time.Time{ // before clock changes in Berlin (back, forward) and on Lord Howe (back, forward)
		time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC),
		time.Date(2026, 4, 4, 3, 0, 0, 0, time.UTC), time.Date(2026, 10, 3, 3, 0, 0, 0, time.UTC),
	}).Draw(t, "begin")
	r.set(m.now)
	for i := range m.replicas {
		one := &m.replicas[i]
		one.server = r.connect()
		one.Limiter = limits.NewAt(one.client, func() time.Time { return m.now.Add(one.clock) })
	}
	rules := compiled(t, m.policy)
	m.zone, _ = time.LoadLocation(m.policy.Timezone)
	m.forms["plain"] = rules[0]
	if m.policy.Algorithm == limits.Sliding {
		m.forms["packed"], m.forms["list"], m.forms["long way"] = limits.AsPacked(rules[0]), limits.AsList(rules[0]), limits.WithoutShortcut(rules[0])
	}
	m.rebuild(t)
	return m
}

// replica draws one of the replicas.
func (m *model) replica(t *rapid.T) *limits.Limiter {
	return m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].Limiter
}

func (m *model) pass(t *rapid.T) {
	most := rapid.SampledFrom([]int64{3, 2000, 30_000, 5_000_000, 100_000_000}).Draw(t, "at most")
	d := time.Duration(rapid.Int64Range(0, most).Draw(t, "ms")) * time.Millisecond
	if rapid.Bool().Draw(t, "to an edge") {
		d = m.edge(t, d)
	}
	m.advance(d)
}

// edge returns the time until a start leaves a window, plus or minus a millisecond. If no start
// will leave a window, it returns otherwise.
func (m *model) edge(t *rapid.T, otherwise time.Duration) time.Duration {
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

func (m *model) advance(d time.Duration) {
	m.now = m.now.Add(d)
	m.redis.set(m.now)
	m.redis.age(d)
}

func (m *model) step(t *rapid.T) {
	m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].clock = time.Duration(rapid.Int64Range(-300_000_000, 300_000_000).Draw(t, "ms")) * time.Millisecond
}

// draw returns a start with a new lease.
func (m *model) draw(t *rapid.T) modelStart {
	m.leases++
	group := "g" + strconv.Itoa(m.leases)
	return modelStart{
		account: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "account"),
		lease:   fmt.Sprintf("%d.1.%s", m.leases, group), group: group, at: m.now,
	}
}

func (m *model) check(form string, s modelStart) limits.Check {
	return limits.NewCheck(s.lease, s.group, []*limits.Rule{m.forms[form]}, facts(s.account))
}

// ask sends the check for every form of the rule. All forms must give the same answer. An unknown
// rule is rebuilt first.
func (m *model) ask(t *rapid.T, s modelStart, look bool) limits.Answer {
	m.settle(t)
	var first *limits.Answer
	replica := m.replica(t)
	ask := replica.Reservations.Reserve
	if look {
		ask = replica.Reservations.Look
	}
	for form := range m.forms {
		for tries := 0; ; tries++ {
			answers, err := ask(context.Background(), form, []limits.Check{m.check(form, s)})
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if unknown := answers[0].Status == limits.StatusUnknown; !unknown && !m.known {
				t.Fatalf("%s: after a restart of Redis: %+v", form, answers[0])
			} else if unknown && tries == 0 && (!m.known || m.redis.endsKeys()) { // the key of an idle rule may have expired
				m.rebuild(t)
				continue
			}
			if first == nil {
				first = &answers[0]
			}
			if got, want := fmt.Sprint(answers[0]), fmt.Sprint(*first); got != want {
				t.Fatalf("%s: %s, another form said %s", form, got, want)
			}
			break
		}
	}
	return *first
}

func (m *model) start(t *rapid.T) {
	m.reserve(t, m.draw(t))
}

// startAgain reserves an alternative of an open reservation, or sends an open reservation again.
func (m *model) startAgain(t *rapid.T) {
	m.settle(t)
	if len(m.open) == 0 {
		return
	}
	s := rapid.SampledFrom(m.open).Draw(t, "open")
	if rapid.Bool().Draw(t, "alternative") {
		m.leases++
		s.lease, s.at = fmt.Sprintf("%d.1.%s", m.leases, s.group), m.now
		m.reserve(t, s)
		return
	}
	if m.notice(t); !m.known {
		m.rebuild(t) // an open reservation passes even if its rule is unknown, which ask does not expect
	}
	if a := m.ask(t, s, false); a.Status != limits.StatusPassed {
		t.Fatalf("%s sent again: %+v", s.lease, a)
	}
}

// notice makes every replica detect the restart of Redis. A replica that detects it during a
// reservation releases the reservation before it asks again.
func (m *model) notice(t *rapid.T) {
	for _, r := range m.replicas {
		if _, err := r.Reservations.Look(context.Background(), "plain", []limits.Check{m.check("plain", modelStart{lease: "x"})}); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *model) look(t *rapid.T) {
	s := m.draw(t)
	m.compare(t, m.ask(t, s, true), s)
}

func (m *model) compare(t *rapid.T, a limits.Answer, s modelStart) {
	if got, want := show(a), m.judge(s); got != want {
		t.Fatalf("start of %s at %s: %s, want %s", s.account, s.at, got, want)
	}
}

func (m *model) reserve(t *rapid.T, s modelStart) {
	a := m.ask(t, s, false)
	m.compare(t, a, s)
	if a.Status == limits.StatusPassed {
		m.open = append(m.open, s)
	}
}

func (m *model) takeOpen(t *rapid.T) (s modelStart, ok bool) {
	m.settle(t)
	if len(m.open) == 0 {
		return s, false
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(t, "which")
	s = m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	return s, true
}

func (m *model) count(t *rapid.T) {
	if s, ok := m.takeOpen(t); ok {
		m.decide(t, s, true, rapid.IntRange(1, 2).Draw(t, "sendings"))
	}
}

func (m *model) release(t *rapid.T) {
	if s, ok := m.takeOpen(t); ok {
		m.decide(t, s, false, rapid.IntRange(1, 2).Draw(t, "sendings"))
	}
}

// decide settles a start. A start that was settled before is settled again in the same way.
func (m *model) decide(t *rapid.T, s modelStart, started bool, sendings int) {
	before, again := m.decided[s.lease]
	if again {
		started = before.counted
	}
	replica := m.replica(t)
	settle := replica.Reservations.Count
	if !started {
		settle = func(ctx context.Context, scope string, c []limits.Check, _ time.Duration) error {
			return replica.Reservations.Release(ctx, scope, c)
		}
	}
	m.tell(t, s, settle, sendings)
	if !again && started {
		m.add(s)
	}
	s.counted = started
	m.decided[s.lease] = s
}

// unreserved counts a start that was not reserved.
func (m *model) unreserved(t *rapid.T) {
	m.settle(t)
	m.ask(t, modelStart{account: "z", lease: "z", group: "z"}, true) // makes the rule known
	s := m.draw(t)
	m.decide(t, s, true, 1)
}

func (m *model) tell(t *rapid.T, s modelStart, settle func(context.Context, string, []limits.Check, time.Duration) error, sendings int) {
	for form := range m.forms {
		for range sendings {
			if err := settle(context.Background(), form, []limits.Check{m.check(form, s)}, m.now.Sub(s.at)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// settle settles all overdue reservations as started.
func (m *model) settle(t *rapid.T) {
	isOverdue := func(s modelStart) bool { return m.now.Sub(s.at) >= limits.SettleWithin }
	if !slices.ContainsFunc(m.open, isOverdue) {
		return
	}
	replica := m.replica(t)
	for form := range m.forms {
		a, err := replica.Reservations.Look(context.Background(), form, []limits.Check{m.check(form, modelStart{account: "a", lease: "x"})})
		if err != nil || a[0].Status != limits.StatusUnsettled {
			t.Fatalf("with overdue reservations: %+v, %v", a, err)
		}
		leases, err := replica.Reservations.Overdue(context.Background(), form)
		for _, s := range m.open {
			if err != nil || slices.Contains(leases, s.lease) != isOverdue(s) {
				t.Fatalf("overdue: %v, %v", leases, err)
			}
		}
	}
	for _, s := range m.open {
		if isOverdue(s) {
			s.group = ""
			m.decide(t, s, true, 1)
		}
	}
	m.open = slices.DeleteFunc(m.open, isOverdue)
}

// wipe deletes all data of Redis. Reservations are lost; counted starts are in the history.
func (m *model) wipe(t *rapid.T) {
	m.redis.flush()
	m.redis.set(m.now)
	m.rebuild(t)
	for _, s := range m.open {
		s.at = m.now // the time of the reservation is lost, so the start counts from now on
		m.decide(t, s, true, 1)
	}
	m.open = nil
}

func (m *model) rebuild(t *rapid.T) {
	newest := slices.Clone(m.counted)
	slices.SortStableFunc(newest, func(a, b modelStart) int { return b.at.Compare(a.at) })
	past := func(_ context.Context, within time.Duration) iter.Seq2[limits.Start, error] {
		return func(yield func(limits.Start, error) bool) {
			for _, s := range newest {
				if ago := m.now.Sub(s.at); ago < within && !yield(limits.Start{Lease: s.lease, Ago: ago, Facts: facts(s.account)}, nil) {
					return
				}
			}
		}
	}
	replica := m.replica(t)
	for form, rule := range m.forms {
		known := false
		if a, err := replica.Reservations.Look(context.Background(), form, []limits.Check{m.check(form, modelStart{account: "a", lease: "x"})}); err == nil {
			known = a[0].Status != limits.StatusUnknown && a[0].Status != limits.StatusUnsettled
		}
		if err := replica.Rebuilder.Rebuild(context.Background(), form, []*limits.Rule{rule}, past); err != nil {
			t.Fatal(err)
		}
		if !known && m.policy.Algorithm == limits.Fixed {
			m.assumeLatest()
		}
		if !known { // the history contains the counted starts
			m.open = slices.DeleteFunc(m.open, func(s modelStart) bool { return m.decided[s.lease].counted })
		}
	}
	m.known = true
}

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

// TestModel compares the limiter with a plain model that keeps all starts for
// ever and looks at each of them: over any times and windows, calls that are sent
// again, two callers whose clocks step, and a Redis that loses everything. Sliding
// rules are compared packed, as lists, and without the short way for one window: so
// these are equal, too. It is the Redis of the single process, of which keys end in
// time or do not; TestModelOfRestarts is the same on a real one.
func TestModel(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rapid.Check(t, func(t *rapid.T) {
		mini.FlushAll()
		m := newModel(t, inProcess{mini, rapid.Bool().Draw(t, "ttl")})
		defer m.close()
		t.Repeat(m.moves())
	})
}

// modelRedis is a Redis whose clock is the test's.
type modelRedis interface {
	connect() *server
	set(now time.Time)
	age(by time.Duration) // ends keys, if it ever does
	endsKeys() bool
	flush()
}

type inProcess struct {
	*miniredis.Miniredis

	ttl bool // keys end in time, as in a real Redis
}

func (r inProcess) connect() *server  { return connect(r.Addr(), false) }
func (r inProcess) set(now time.Time) { r.SetTime(now) }
func (r inProcess) endsKeys() bool    { return r.ttl }
func (r inProcess) flush()            { r.FlushAll() }
func (r inProcess) age(by time.Duration) {
	if r.ttl {
		r.FastForward(by)
	}
}

type model struct {
	redis    modelRedis
	policy   limits.Policy
	zone     *time.Location
	forms    map[string]*limits.Rule // scope -> the rule in this form
	replicas [2]replica
	now      time.Time
	leases   int
	believed bool // no restart since the rules were filled

	counted []modelStart
	open    []modelStart // reserved, in this order
	decided map[string]modelStart
	since   map[string]time.Time
	n       map[string]int
}

// replica is a process, whose clock is wrong.
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
	counted               bool // of those that were decided
}

func newModel(t *rapid.T, r modelRedis) *model {
	m := &model{
		redis: r, policy: drawPolicy(t), forms: make(map[string]*limits.Rule), believed: true,
		decided: make(map[string]modelStart), since: make(map[string]time.Time), n: make(map[string]int),
	}
	m.now = rapid.SampledFrom([]time.Time{ // clocks change soon: back in Berlin, forward there, back by half an hour on Lord Howe, forward there
		time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC),
		time.Date(2026, 4, 4, 3, 0, 0, 0, time.UTC), time.Date(2026, 10, 3, 3, 0, 0, 0, time.UTC),
	}).Draw(t, "begin")
	r.set(m.now)
	for i := range m.replicas {
		one := &m.replicas[i]
		one.server = r.connect()
		one.Limiter = limits.NewAt(one.client, func() time.Time { return m.now.Add(one.clock) })
	}
	rules, err := limits.Compile("p", []limits.Policy{m.policy})
	if err != nil {
		t.Fatal(err)
	}
	m.zone, _ = time.LoadLocation(m.policy.Timezone)
	m.forms["plain"] = rules[0]
	if m.policy.Algorithm == limits.Sliding {
		m.forms["packed"], m.forms["list"], m.forms["long way"] = limits.AsPacked(rules[0]), limits.AsList(rules[0]), limits.WithoutShortcut(rules[0])
	}
	m.rebuild(t)
	return m
}

func (m *model) close() {
	for _, r := range m.replicas {
		_ = r.client.Close()
	}
}

// replica is one of them.
func (m *model) replica(t *rapid.T) *limits.Limiter {
	return m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].Limiter
}

func drawPolicy(t *rapid.T) limits.Policy {
	p := limits.Policy{Name: "n", Per: "tags.account"}
	most := rapid.Int64Range(1, 4)
	per := rapid.SampledFrom([]int64{1, 1000, 20_000, 3_600_000, 86_400_000})
	switch p.Algorithm = rapid.SampledFrom([]limits.Algorithm{limits.Sliding, limits.Sliding, limits.Fixed, limits.Calendar}).Draw(t, "algorithm"); p.Algorithm {
	case limits.Sliding:
		for i, per := range rapid.SliceOfNDistinct(per, 1, 3, rapid.ID[int64]).Draw(t, "windows") {
			p.Windows = append(p.Windows, limits.Window{Max: most.Draw(t, fmt.Sprintf("max %d", i)), PerMS: per})
		}
	case limits.Calendar:
		p.Max, p.Timezone = most.Draw(t, "max"), rapid.SampledFrom([]string{"", "Asia/Shanghai", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"}).Draw(t, "zone")
		p.Period = rapid.SampledFrom([]limits.Period{limits.Day, limits.Week, limits.Month}).Draw(t, "period")
	default:
		p.Max, p.PerMS = most.Draw(t, "max"), per.Draw(t, "per")
	}
	return p
}

func (m *model) pass(t *rapid.T) {
	most := rapid.SampledFrom([]int64{3, 2000, 30_000, 5_000_000, 100_000_000}).Draw(t, "at most")
	d := time.Duration(rapid.Int64Range(0, most).Draw(t, "ms")) * time.Millisecond
	if rapid.Bool().Draw(t, "to an edge") {
		d = m.edge(t, d)
	}
	m.advance(d)
}

// edge is until about when a start leaves a window, within a millisecond.
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

// draw makes a start with a lease of its own.
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

// ask asks all forms, which must say the same, but for what they do not believe.
func (m *model) ask(t *rapid.T, s modelStart, look bool) limits.Answer {
	m.settle(t)
	var first *limits.Answer
	replica := m.replica(t)
	ask := replica.Reserve
	if look {
		ask = replica.Look
	}
	for form := range m.forms {
		for tries := 0; ; tries++ {
			answers, err := ask(context.Background(), form, []limits.Check{m.check(form, s)})
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			if unknown := answers[0].Status == limits.StatusUnknown; !unknown && !m.believed {
				t.Fatalf("%s: after a restart of Redis: %+v", form, answers[0])
			} else if unknown && tries == 0 && (!m.believed || m.redis.endsKeys()) { // a rule that was idle for long
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
	s := m.draw(t)
	m.compare(t, m.ask(t, s, false), s)
}

// startAgain is a report with alternatives, or one that is sent again.
func (m *model) startAgain(t *rapid.T) {
	m.settle(t)
	if len(m.open) == 0 {
		return
	}
	s := rapid.SampledFrom(m.open).Draw(t, "open")
	if rapid.Bool().Draw(t, "alternative") {
		m.leases++
		s.lease, s.at = fmt.Sprintf("%d.1.%s", m.leases, s.group), m.now
		m.compare(t, m.ask(t, s, false), s)
		return
	}
	if m.notice(t); !m.believed {
		m.rebuild(t) // what was reserved before passes in any case
	}
	if a := m.ask(t, s, false); a.Status != limits.StatusPassed {
		t.Fatalf("%s sent again: %+v", s.lease, a)
	}
}

// notice has every replica know that Redis was started anew: one that finds out by a
// reservation gives it back before it asks again.
func (m *model) notice(t *rapid.T) {
	for _, r := range m.replicas {
		if _, err := r.Look(context.Background(), "plain", []limits.Check{m.check("plain", modelStart{lease: "x"})}); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *model) look(t *rapid.T) {
	s := m.draw(t)
	a, want := m.ask(t, s, true), m.judge(s)
	if got := show(a); got != want {
		t.Fatalf("looking at %s: %s, want %s", s.account, got, want)
	}
}

func (m *model) compare(t *rapid.T, a limits.Answer, s modelStart) {
	want := m.judge(s)
	if got := show(a); got != want {
		t.Fatalf("start of %s at %s: %s, want %s", s.account, s.at, got, want)
	}
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

// decide says what became of a start; of one that was decided before, the same again.
func (m *model) decide(t *rapid.T, s modelStart, started bool, sendings int) {
	before, again := m.decided[s.lease]
	if again {
		started = before.counted
	}
	replica := m.replica(t)
	settle := replica.Count
	if !started {
		settle = func(ctx context.Context, scope string, c []limits.Check, _ time.Duration) error {
			return replica.Release(ctx, scope, c)
		}
	}
	m.tell(t, s, settle, sendings)
	if !again && started {
		m.add(s)
	}
	s.counted = started
	m.decided[s.lease] = s
}

// unreserved is a start that was counted without having been reserved.
func (m *model) unreserved(t *rapid.T) {
	m.settle(t)
	m.ask(t, modelStart{account: "z", lease: "z", group: "z"}, true) // believed, or made so
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

// settle finds out what became of what is overdue: all of it started.
func (m *model) settle(t *rapid.T) {
	isOverdue := func(s modelStart) bool { return m.now.Sub(s.at) >= limits.SettleWithin }
	if !slices.ContainsFunc(m.open, isOverdue) {
		return
	}
	replica := m.replica(t)
	for form := range m.forms {
		a, err := replica.Look(context.Background(), form, []limits.Check{m.check(form, modelStart{account: "a", lease: "x"})})
		if err != nil || a[0].Status != limits.StatusUnsettled {
			t.Fatalf("with overdue reservations: %+v, %v", a, err)
		}
		leases, err := replica.Overdue(context.Background(), form)
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

// wipe: Redis loses all. What was reserved is what was not counted.
func (m *model) wipe(t *rapid.T) {
	m.redis.flush()
	m.redis.set(m.now)
	m.rebuild(t)
	for _, s := range m.open {
		s.at = m.now // the later of what can be known
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
		if a, err := replica.Look(context.Background(), form, []limits.Check{m.check(form, modelStart{account: "a", lease: "x"})}); err == nil {
			known = a[0].Status != limits.StatusUnknown && a[0].Status != limits.StatusUnsettled
		}
		if err := replica.Rebuild(context.Background(), form, []*limits.Rule{rule}, past); err != nil {
			t.Fatal(err)
		}
		if !known && m.policy.Algorithm == limits.Fixed {
			m.assumeLatest()
		}
		if !known { // what is in the history is settled
			m.open = slices.DeleteFunc(m.open, func(s modelStart) bool { return m.decided[s.lease].counted })
		}
	}
	m.believed = true
}

// assumeLatest is what a fixed rule takes for granted after a loss.
func (m *model) assumeLatest() {
	clear(m.since)
	clear(m.n)
	for _, s := range m.counted {
		if m.now.Sub(s.at) >= time.Duration(m.policy.PerMS)*time.Millisecond {
			continue
		}
		m.n[s.account]++
		if s.at.After(m.since[s.account]) {
			m.since[s.account] = s.at
		}
	}
}

// add counts a start as of when it was reserved.
func (m *model) add(s modelStart) {
	m.counted = append(m.counted, s)
	per := time.Duration(m.policy.PerMS) * time.Millisecond
	if since, ok := m.since[s.account]; !ok || !s.at.Before(since.Add(per)) {
		m.since[s.account], m.n[s.account] = s.at, 0
	}
	m.n[s.account]++
}

// judge says in words what the answer to a start should be.
func (m *model) judge(s modelStart) string {
	groups := make(map[string]time.Time)
	for _, o := range m.open {
		if _, seen := groups[o.group]; !seen && o.account == s.account && o.group != s.group {
			groups[o.group] = o.at
		}
	}
	switch m.policy.Algorithm {
	case limits.Sliding:
		return m.judgeSliding(s, groups)
	case limits.Calendar:
		return m.judgeCalendar(s, groups)
	}
	end := m.since[s.account].Add(time.Duration(m.policy.PerMS) * time.Millisecond)
	n := m.n[s.account]
	if !m.now.Before(end) {
		n = 0
	}
	return tally(n, len(groups), int(m.policy.Max), end.Sub(m.now))
}

func tally(n, pending, most int, wait time.Duration) string {
	switch {
	case n >= most:
		return fmt.Sprintf("shut for %s by 0", wait)
	case n+pending >= most:
		return "shut by reservations"
	}
	return "passes"
}

func (m *model) judgeSliding(s modelStart, groups map[string]time.Time) string {
	soft, wait, by := false, time.Duration(0), 0
	for i, w := range m.policy.Windows {
		per := time.Duration(w.PerMS) * time.Millisecond
		var inside []time.Duration // ago
		for _, c := range m.counted {
			if ago := m.now.Sub(c.at); c.account == s.account && ago < per {
				inside = append(inside, ago)
			}
		}
		pending := 0
		for _, at := range groups {
			if m.now.Sub(at) < per {
				pending++
			}
		}
		slices.Sort(inside)
		switch {
		case len(inside) >= int(w.Max):
			if opens := per - inside[w.Max-1]; opens > wait {
				wait, by = opens, i
			}
		case len(inside)+pending >= int(w.Max) && pending > 0:
			soft = true
		}
	}
	switch {
	case wait > 0:
		return fmt.Sprintf("shut for %s by %d", wait, by)
	case soft:
		return "shut by reservations"
	}
	return "passes"
}

const quarter = 15 * time.Minute

func (m *model) judgeCalendar(s modelStart, groups map[string]time.Time) string {
	name := func(at time.Time) string {
		at = at.In(m.zone)
		switch m.policy.Period {
		case limits.Week:
			y, w := at.ISOWeek()
			return fmt.Sprint(y, w)
		case limits.Month:
			return at.Format("2006-01")
		}
		return at.Format(time.DateOnly)
	}
	n := 0
	for _, c := range m.counted {
		if c.account == s.account && name(c.at) == name(m.now) {
			n++
		}
	}
	next, now := m.now.Truncate(quarter), name(m.now) // zones of the test begin with quarters of hours
	for name(next) == now {
		next = next.Add(quarter)
	}
	return tally(n, len(groups), int(m.policy.Max), next.Sub(m.now))
}

func show(a limits.Answer) string {
	switch {
	case a.Status == limits.StatusPassed:
		return "passes"
	case a.Status != limits.StatusLimited:
		return fmt.Sprintf("status %d", a.Status)
	case a.Last().Pending:
		return "shut by reservations"
	}
	return fmt.Sprintf("shut for %s by %d", a.Last().Wait, a.Last().Window)
}

package limits_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"pgregory.net/rapid"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
)

// TestHistoriesOfTakesAgreeWithAPlainModel compares all numbers of takes with a plain model. The
// histories contain takes of any cost by several rules at once, peeks, returns and usage, ids that
// are sent again, changed maxima, changes of the clocks of two callers and of Redis, a Redis that
// loses all data, and a Redis that restarts with its data. Sliding rules are compared as packed
// times, as lists, without the shortcut, and in the form that their maximum requires, which changes
// with the maximum.
func TestHistoriesOfTakesAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rapid.Check(t, func(rt *rapid.T) {
		mini.FlushAll()
		m := newTakes(rt, inProcess{mini, t, rapid.Bool().Draw(rt, "ttl")})
		moves := m.moves()
		moves["redis is started anew"] = m.otherEpoch
		rt.Repeat(moves)
	})
}

// TestHistoriesOfTakesOnARedisThatRestarts runs the same histories on a real Redis that is killed
// and restarted with its data of any earlier time.
func TestHistoriesOfTakesOnARedisThatRestarts(t *testing.T) {
	t.Parallel()
	server, left := servers.Redis(t), 40
	if testing.Short() {
		left = 5
	}
	rapid.Check(t, func(rt *rapid.T) {
		if left--; left < 0 && !rt.Failed() {
			return
		}
		r := dial(t, server)
		defer func() { _ = r.direct.Close() }()
		m := newTakes(rt, r)
		moves := m.moves()
		var data [][]byte
		var states []takesState
		moves["snapshot"] = func(*rapid.T) { data, states = append(data, r.Snapshot(t)), append(states, m.clone()) }
		moves["redis is started anew"] = func(rt *rapid.T) {
			moves["snapshot"](rt)
			i := rapid.IntRange(0, len(data)-1).Draw(rt, "snapshot")
			r.restart(m.now, func() { r.Restore(t, data[i]) })
			m.takesState = states[i]
			m.takesState = m.clone()
			m.since = make(map[int]time.Time)
			m.notice(rt)
		}
		rt.Repeat(moves)
	})
}

// takes is the plain model.
type takes struct {
	takesState

	redis    modelRedis
	replicas [2]replica
	now      time.Time
	policies []limits.Policy
	forms    map[string][]*limits.Rule // key: scope
	sent     []modelTake               // takings with an id
}

// takesState is the expected state of Redis.
type takesState struct {
	times   map[string][]time.Time // key: rule and account; newest time first
	begin   map[string]time.Time   // start of the window, by rule and account; only for rules that only count
	n       map[string]int64
	since   map[int]time.Time // key: index of the rule
	renewed map[int]time.Time
	ids     map[string]modelTake
}

type modelTake struct {
	id, account string
	cost, back  int64
	at          time.Time
}

func (s takesState) clone() takesState {
	return takesState{maps.Clone(s.times), maps.Clone(s.begin), maps.Clone(s.n), maps.Clone(s.since), maps.Clone(s.renewed), maps.Clone(s.ids)}
}

func emptyTakes() takesState {
	return takesState{map[string][]time.Time{}, map[string]time.Time{}, map[string]int64{}, map[int]time.Time{}, map[int]time.Time{}, map[string]modelTake{}}
}

func newTakes(t *rapid.T, r modelRedis) *takes {
	m := &takes{redis: r, takesState: emptyTakes(), forms: make(map[string][]*limits.Rule)}
	m.now = time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	r.set(m.now)
	for i := range m.replicas {
		one := &m.replicas[i]
		one.server = r.connect()
		one.Limiter = limits.NewAt(one.client, func() time.Time { return m.now.Add(one.clock) })
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
		p := drawPolicy(t)
		if p.Name = "n" + strconv.Itoa(i); p.Algorithm == limits.Fixed && rapid.Bool().Draw(t, "duplicate") {
			p.Algorithm = limits.Duplicate
		}
		m.policies = append(m.policies, p)
	}
	m.compile(t)
	return m
}

// compile makes the rules in all forms.
func (m *takes) compile(t *rapid.T) {
	for form, as := range map[string]func(*limits.Rule) *limits.Rule{
		"plain": func(r *limits.Rule) *limits.Rule { return r }, "packed": limits.AsPacked, "list": limits.AsList, "long way": limits.WithoutShortcut,
	} {
		rules := setOf(t, m.policies...)
		for i, r := range rules {
			if len(m.windows(i)) > 0 {
				rules[i] = as(r)
			}
		}
		m.forms[form] = rules
	}
}

func (m *takes) moves() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"time passes":     m.pass,
		"caller's clock":  m.stepCaller,
		"redis' clock":    m.stepBack,
		"take":            func(t *rapid.T) { m.ask(t, m.draw(t), true) },
		"take more":       func(t *rapid.T) { m.ask(t, m.draw(t), true) },
		"take again":      func(t *rapid.T) { m.askAgain(t, true) },
		"peek":            func(t *rapid.T) { m.ask(t, m.draw(t), false) },
		"peek again":      func(t *rapid.T) { m.askAgain(t, false) },
		"return":          m.giveBack,
		"usage":           m.usage,
		"maximum":         m.maximum,
		"redis loses all": m.wipe,
	}
}

func (m *takes) replica(t *rapid.T) *limits.Limiter {
	return m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].Limiter
}

func (m *takes) draw(t *rapid.T) modelTake {
	most := int64(20)
	for _, r := range m.forms["plain"] {
		most = min(most, r.MaxCost())
	}
	one := modelTake{account: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "account"), cost: rapid.Int64Range(1, most).Draw(t, "cost")}
	if rapid.Bool().Draw(t, "with id") {
		one.id = "id" + strconv.Itoa(len(m.sent))
		m.sent = append(m.sent, one)
	}
	return one
}

// askAgain sends an id again, sometimes with another cost.
func (m *takes) askAgain(t *rapid.T, counts bool) {
	if len(m.sent) == 0 {
		return
	}
	one := m.sent[len(m.sent)-1-rapid.IntRange(0, min(3, len(m.sent)-1)).Draw(t, "which")]
	if other := m.draw(t).cost; one.cost > other || rapid.IntRange(0, 4).Draw(t, "same cost") == 0 {
		one.cost = other
	}
	m.ask(t, one, counts)
}

func (m *takes) taking(form string, one modelTake) []limits.Taking {
	return []limits.Taking{limits.NewTaking(one.id, one.cost, m.forms[form], facts(one.account))}
}

func (m *takes) ask(t *rapid.T, one modelTake, counts bool) {
	replica := m.replica(t)
	ask := replica.Takes.Peek
	if counts {
		ask = replica.Takes.Take
	}
	want := m.answer(one, counts)
	for form := range m.forms {
		a, err := ask(context.Background(), form, m.taking(form, one))
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		if got := showTaken(a[0]); got != want {
			t.Fatalf("%s at %s, counting %t: %+v\nis   %s\nwant %s", form, m.now, counts, one, got, want)
		}
	}
}

func showTaken(a limits.Taken) string {
	since := "always"
	if !a.Since.IsZero() {
		since = a.Since.UTC().String()
	}
	text := fmt.Sprintf("allowed %t repeated %t other cost %t wait %s since %s", a.Allowed, a.Repeated, a.OtherCost, a.Wait, since)
	for _, s := range a.Items {
		text += fmt.Sprintf("; window %d used %d of %d resets %s wait %s", s.Window, s.Used, s.Max, s.Reset, s.Wait)
	}
	return text
}

func (m *takes) giveBack(t *rapid.T) {
	if len(m.sent) == 0 {
		return
	}
	one := m.sent[len(m.sent)-1-rapid.IntRange(0, min(3, len(m.sent)-1)).Draw(t, "which")]
	one.cost = m.draw(t).cost
	replica := m.replica(t)
	want := m.returned(one)
	for form := range m.forms {
		for range 2 { // the second call gives back nothing more
			n, err := replica.Takes.Return(context.Background(), form, m.taking(form, one))
			if err != nil || n[0] != want {
				t.Fatalf("%s at %s: %+v: gave back %v, %v, want %d", form, m.now, one, n, err, want)
			}
		}
	}
}

func (m *takes) usage(t *rapid.T) {
	replica := m.replica(t)
	for form, rules := range m.forms {
		for _, account := range []string{"a", "b"} {
			items := make([]limits.Item, len(rules))
			for i, r := range rules {
				items[i] = limits.Item{Rule: r, Subject: r.Subject(facts(account))}
			}
			got, err := replica.Usage.ReadUses(context.Background(), form, items)
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			for i := range rules {
				if want := m.standing(i, account, 1); fmt.Sprint(got[i].Standing) != fmt.Sprint(want) {
					t.Fatalf("%s at %s: usage of rule %d by %s:\nis   %+v\nwant %+v", form, m.now, i, account, got[i].Standing, want)
				}
			}
		}
	}
}

func (m *takes) maximum(t *rapid.T) {
	most := rapid.SampledFrom([]int64{1, 2, 3, 5, 31, 33, 40})
	p := &m.policies[rapid.IntRange(0, len(m.policies)-1).Draw(t, "rule")]
	if len(p.Windows) == 0 {
		p.Max = most.Draw(t, "max")
	}
	p.Windows = slices.Clone(p.Windows)
	for i := range p.Windows {
		p.Windows[i].Max = most.Draw(t, "max of window")
	}
	m.compile(t)
}

func (m *takes) wipe(*rapid.T) {
	m.redis.flush()
	m.redis.set(m.now)
	m.takesState = emptyTakes()
}

// otherEpoch changes the epoch of all rules in Redis to an earlier one.
func (m *takes) otherEpoch(t *rapid.T) {
	client := m.replicas[0].client
	for _, key := range client.Keys(context.Background(), "*}:r:*").Val() {
		value := client.Get(context.Background(), key).Val()
		left := client.PTTL(context.Background(), key).Val()
		if err := client.Set(context.Background(), key, value[:26]+"before", max(left, 0)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	m.since = make(map[int]time.Time)
}

// notice makes every replica detect the restart of Redis. A replica that detects it during a take
// answers with the current time as Since.
func (m *takes) notice(t *rapid.T) {
	for _, r := range m.replicas {
		if _, err := r.Takes.Peek(context.Background(), "plain", m.taking("plain", modelTake{account: "a", cost: 1})); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *takes) stepCaller(t *rapid.T) {
	m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].clock = time.Duration(rapid.Int64Range(-300_000_000, 300_000_000).Draw(t, "ms")) * time.Millisecond
}

func (m *takes) pass(t *rapid.T) {
	most := rapid.SampledFrom([]int64{3, 2000, 30_000, 700_000, 5_000_000, 100_000_000}).Draw(t, "at most")
	d := time.Duration(rapid.Int64Range(0, most).Draw(t, "ms")) * time.Millisecond
	if rapid.Bool().Draw(t, "to an edge") {
		d = m.edge(t, d)
	}
	m.now = m.now.Add(d)
	m.redis.set(m.now)
	m.redis.age(d)
}

// edge returns the time until a counted time leaves a window, plus or minus a millisecond. If no
// counted time will leave a window, it returns otherwise.
func (m *takes) edge(t *rapid.T, otherwise time.Duration) time.Duration {
	var ends []time.Duration
	for key, times := range m.times {
		rule, _, _ := strings.Cut(key, " ")
		i, _ := strconv.Atoi(rule)
		for _, at := range times {
			for _, w := range m.windows(i) {
				if left := at.Add(millis(w.PerMS)).Sub(m.now); left > time.Millisecond {
					ends = append(ends, left)
				}
			}
		}
	}
	if len(ends) == 0 {
		return otherwise
	}
	slices.Sort(ends)
	return rapid.SampledFrom(ends).Draw(t, "end") + time.Duration(rapid.IntRange(-1, 1).Draw(t, "off"))*time.Millisecond
}

// stepBack sets the clock of Redis back. It does nothing if a counted time would return into a
// window that it has left, because Redis may have deleted this time.
func (m *takes) stepBack(t *rapid.T) {
	back := time.Duration(rapid.SampledFrom([]int64{1, 500, 20_000, 3_000_000, 200_000_000}).Draw(t, "back")) * time.Millisecond
	for key, times := range m.times {
		rule, _, _ := strings.Cut(key, " ")
		i, _ := strconv.Atoi(rule)
		for _, at := range times {
			for _, w := range m.windows(i) {
				if ends := at.Add(millis(w.PerMS)); !m.now.Before(ends) && m.now.Add(-back).Before(ends) {
					return
				}
			}
		}
	}
	for _, one := range m.ids { // a take in a later period cannot be given back
		for i, p := range m.policies {
			if at := m.now.Add(-back); p.Algorithm == limits.Calendar && one.at.After(at) && m.calendar(i, at) != m.calendar(i, one.at) {
				return
			}
		}
	}
	if !m.redis.endsKeys() {
		m.now = m.now.Add(-back)
		m.redis.set(m.now)
	}
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

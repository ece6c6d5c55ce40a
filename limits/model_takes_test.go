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

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestHistoriesOfTakesAgreeWithAPlainModel compares all numbers in the answers to takes (requests to limit sets) with a plain model. The
// histories contain takes of any cost that several rules count, peeks, returns, queries of the usage, ids that are sent again, and changes
// of a maximum. They also contain changes of the clocks of two callers and of Redis, a Redis that loses all data, and a Redis that restarts
// with its data.
func TestHistoriesOfTakesAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rapid.Check(t, func(rt *rapid.T) {
		mini.FlushAll()
		m := newTakes(rt, inProcessRedis{mini, t, rapid.Bool().Draw(rt, "ttl")})
		moves := m.actions()
		moves["redis is started anew"] = m.changeEpoch
		rt.Repeat(moves)
	})
}

// TestHistoriesOfTakesOnARedisThatRestarts runs the same histories of takes on a real Redis. This Redis is killed and restarted with its
// data from any earlier time.
func TestHistoriesOfTakesOnARedisThatRestarts(t *testing.T) {
	t.Parallel()
	server, left := servers.StartRedis(t), 40
	if testing.Short() {
		left = 5
	}
	rapid.Check(t, func(rt *rapid.T) {
		if left--; left < 0 && !rt.Failed() {
			return
		}
		r := newRealRedis(t, server)
		defer func() { _ = r.directClient.Close() }()
		m := newTakes(rt, r)
		moves := m.actions()
		var data [][]byte
		var states []takesState
		moves["snapshot"] = func(*rapid.T) { data, states = append(data, r.Snapshot(t)), append(states, m.clone()) }
		moves["redis is started anew"] = func(rt *rapid.T) {
			moves["snapshot"](rt)
			i := rapid.IntRange(0, len(data)-1).Draw(rt, "snapshot")
			r.restart(m.now, func() { r.Restore(t, data[i]) })
			m.takesState = states[i]
			m.takesState = m.clone()
			m.countsSince = make(map[int]time.Time)
			m.detectRestart(rt)
		}
		rt.Repeat(moves)
	})
}

// takesModel is the plain model of takes.
type takesModel struct {
	takesState

	redis       modelRedis
	replicas    [2]replica
	now         time.Time
	policies    []policy.Policy
	rules       []*limits.Rule
	takesWithID []modelTake // requests to the limit set (takes) that have an id
}

// takesState is the state that the model expects in Redis.
type takesState struct {
	times       map[string][]time.Time // key: rule and account; newest time first
	windowStart map[string]time.Time   // start of the window, by rule and account; only for rules that only count
	counts      map[string]int64
	countsSince map[int]time.Time // key: index of the rule
	renewedAt   map[int]time.Time
	takeByID    map[string]modelTake
}

type modelTake struct {
	id, account     string
	cost, givenBack int64
	at              time.Time
}

func (s takesState) clone() takesState {
	return takesState{maps.Clone(s.times), maps.Clone(s.windowStart), maps.Clone(s.counts), maps.Clone(s.countsSince), maps.Clone(s.renewedAt), maps.Clone(s.takeByID)}
}

func emptyTakes() takesState {
	return takesState{map[string][]time.Time{}, map[string]time.Time{}, map[string]int64{}, map[int]time.Time{}, map[int]time.Time{}, map[string]modelTake{}}
}

func newTakes(t *rapid.T, r modelRedis) *takesModel {
	m := &takesModel{redis: r, takesState: emptyTakes()}
	m.now = time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	r.setClock(m.now)
	for i := range m.replicas {
		one := &m.replicas[i]
		one.redisLimiter = r.connect()
		one.Limiter = limits.NewWithLocalClock(one.client, func() time.Time { return m.now.Add(one.clockError) })
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
		p := drawPolicy(t)
		if p.Name = "n" + strconv.Itoa(i); p.Algorithm == policy.Fixed && rapid.Bool().Draw(t, "duplicate") {
			p.Algorithm = policy.Duplicate
		}
		m.policies = append(m.policies, p)
	}
	m.rules = compileSet(t, m.policies...)
	return m
}

func (m *takesModel) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"time passes":     m.passTime,
		"caller's clock":  m.setCallerClock,
		"redis' clock":    m.stepClockBack,
		"take":            func(t *rapid.T) { m.checkTake(t, m.drawTake(t), true) },
		"take more":       func(t *rapid.T) { m.checkTake(t, m.drawTake(t), true) },
		"take again":      func(t *rapid.T) { m.checkTakeAgain(t, true) },
		"peek":            func(t *rapid.T) { m.checkTake(t, m.drawTake(t), false) },
		"peek again":      func(t *rapid.T) { m.checkTakeAgain(t, false) },
		"return":          m.checkReturn,
		"usage":           m.checkUsage,
		"maximum":         m.changeMaxima,
		"redis loses all": m.wipeRedis,
	}
}

func (m *takesModel) drawReplica(t *rapid.T) *limits.Limiter {
	return m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].Limiter
}

func (m *takesModel) drawTake(t *rapid.T) modelTake {
	most := int64(20)
	for _, r := range m.rules {
		most = min(most, r.MaxCost())
	}
	one := modelTake{account: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "account"), cost: rapid.Int64Range(1, most).Draw(t, "cost")}
	if rapid.Bool().Draw(t, "with id") {
		one.id = "id" + strconv.Itoa(len(m.takesWithID))
		m.takesWithID = append(m.takesWithID, one)
	}
	return one
}

// checkTakeAgain sends a take with an id that was used before, sometimes with another cost. It compares the answer with the model.
func (m *takesModel) checkTakeAgain(t *rapid.T, isCounted bool) {
	if len(m.takesWithID) == 0 {
		return
	}
	one := m.takesWithID[len(m.takesWithID)-1-rapid.IntRange(0, min(3, len(m.takesWithID)-1)).Draw(t, "which")]
	if other := m.drawTake(t).cost; one.cost > other || rapid.IntRange(0, 4).Draw(t, "same cost") == 0 {
		one.cost = other
	}
	m.checkTake(t, one, isCounted)
}

func (m *takesModel) newTakings(take modelTake) []limits.Taking {
	return []limits.Taking{limits.NewTaking(take.id, take.cost, m.rules, accountFacts(take.account))}
}

func (m *takesModel) checkTake(t *rapid.T, take modelTake, isCounted bool) {
	replica := m.drawReplica(t)
	ask := replica.Takes.Peek
	if isCounted {
		ask = replica.Takes.Take
	}
	want := m.expectedAnswer(take, isCounted)
	a, err := ask(context.Background(), modelScope, m.newTakings(take))
	must.Succeed(t, err)
	if got := takenText(a[0]); got != want {
		t.Fatalf("at %s, counting %t: %+v\nis   %s\nwant %s", m.now, isCounted, take, got, want)
	}
}

func takenText(a limits.TakeResult) string {
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

func (m *takesModel) checkReturn(t *rapid.T) {
	if len(m.takesWithID) == 0 {
		return
	}
	one := m.takesWithID[len(m.takesWithID)-1-rapid.IntRange(0, min(3, len(m.takesWithID)-1)).Draw(t, "which")]
	one.cost = m.drawTake(t).cost
	replica := m.drawReplica(t)
	want := m.returnTake(one)
	for range 2 { // the second call gives back nothing more
		n, err := replica.Takes.Return(context.Background(), modelScope, m.newTakings(one))
		if err != nil || n[0] != want {
			t.Fatalf("at %s: %+v: gave back %v, %v, want %d", m.now, one, n, err, want)
		}
	}
}

func (m *takesModel) checkUsage(t *rapid.T) {
	replica := m.drawReplica(t)
	for _, account := range []string{"a", "b"} {
		items := make([]limits.Item, len(m.rules))
		for i, r := range m.rules {
			items[i] = limits.Item{Rule: r, Subject: r.Subject(accountFacts(account))}
		}
		got, err := replica.Usage.ReadUses(context.Background(), modelScope, items)
		must.Succeed(t, err)
		for i := range m.rules {
			if want := m.expectedStanding(i, account, 1); fmt.Sprint(got[i].WindowUse) != fmt.Sprint(want) {
				t.Fatalf("at %s: usage of rule %d by %s:\nis   %+v\nwant %+v", m.now, i, account, got[i].WindowUse, want)
			}
		}
	}
}

func (m *takesModel) changeMaxima(t *rapid.T) {
	most := rapid.SampledFrom([]int64{1, 2, 3, 5, 31, 33, 40})
	p := &m.policies[rapid.IntRange(0, len(m.policies)-1).Draw(t, "rule")]
	if len(p.Windows) == 0 {
		p.Max = most.Draw(t, "max")
	}
	p.Windows = slices.Clone(p.Windows)
	for i := range p.Windows {
		p.Windows[i].Max = most.Draw(t, "max of window")
	}
	m.rules = compileSet(t, m.policies...)
}

func (m *takesModel) wipeRedis(*rapid.T) {
	m.redis.flush()
	m.redis.setClock(m.now)
	m.takesState = emptyTakes()
}

// changeEpoch writes an earlier epoch into all rules in Redis, as if they had begun to count before a restart.
func (m *takesModel) changeEpoch(t *rapid.T) {
	client := m.replicas[0].client
	for _, key := range client.Keys(context.Background(), "*}:r:*").Val() {
		value := client.Get(context.Background(), key).Val()
		left := client.PTTL(context.Background(), key).Val()
		must.Succeed(t, client.Set(context.Background(), key, value[:26]+"before", max(left, 0)).Err())
	}
	m.countsSince = make(map[int]time.Time)
}

// detectRestart makes every replica detect that Redis has restarted. If a replica detected it only during a take, it would answer with the
// present time as Since.
func (m *takesModel) detectRestart(t *rapid.T) {
	for _, r := range m.replicas {
		_, err := r.Takes.Peek(context.Background(), modelScope, m.newTakings(modelTake{account: "a", cost: 1}))
		must.Succeed(t, err)
	}
}

func (m *takesModel) setCallerClock(t *rapid.T) {
	m.replicas[rapid.IntRange(0, len(m.replicas)-1).Draw(t, "replica")].clockError = time.Duration(rapid.Int64Range(-300_000_000, 300_000_000).Draw(t, "ms")) * time.Millisecond
}

func (m *takesModel) passTime(t *rapid.T) {
	most := rapid.SampledFrom([]int64{3, 2000, 30_000, 700_000, 5_000_000, 100_000_000}).Draw(t, "at most")
	d := time.Duration(rapid.Int64Range(0, most).Draw(t, "ms")) * time.Millisecond
	if rapid.Bool().Draw(t, "to an edge") {
		d = m.timeToEdge(t, d)
	}
	m.now = m.now.Add(d)
	m.redis.setClock(m.now)
	m.redis.expireKeys(d)
}

// timeToEdge returns the time until one of the counted times leaves a window, plus or minus a millisecond. If no counted time will leave a
// window, it returns the parameter otherwise.
func (m *takesModel) timeToEdge(t *rapid.T, otherwise time.Duration) time.Duration {
	var ends []time.Duration
	for key, times := range m.times {
		rule, _, _ := strings.Cut(key, " ")
		i, _ := strconv.Atoi(rule)
		for _, at := range times {
			for _, w := range m.slidingWindows(i) {
				if left := at.Add(millisToDuration(w.PerMS)).Sub(m.now); left > time.Millisecond {
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

// stepClockBack sets the clock of Redis back. There is an exception: if a counted time that has left a window would be inside the window
// again, the clock stays, because Redis may have deleted this time.
func (m *takesModel) stepClockBack(t *rapid.T) {
	back := time.Duration(rapid.SampledFrom([]int64{1, 500, 20_000, 3_000_000, 200_000_000}).Draw(t, "back")) * time.Millisecond
	for key, times := range m.times {
		rule, _, _ := strings.Cut(key, " ")
		i, _ := strconv.Atoi(rule)
		for _, at := range times {
			for _, w := range m.slidingWindows(i) {
				if ends := at.Add(millisToDuration(w.PerMS)); !m.now.Before(ends) && m.now.Add(-back).Before(ends) {
					return
				}
			}
		}
	}
	for _, one := range m.takeByID { // a take in a later period cannot be given back
		for i, p := range m.policies {
			if at := m.now.Add(-back); p.Algorithm == policy.Calendar && one.at.After(at) && m.calendarPeriod(i, at) != m.calendarPeriod(i, one.at) {
				return
			}
		}
	}
	if !m.redis.canExpireKeys() {
		m.now = m.now.Add(-back)
		m.redis.setClock(m.now)
	}
}

func millisToDuration(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

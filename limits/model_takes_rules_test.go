package limits_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/limits"
)

// The rules of the plain model of takes.

// windows returns the windows of a sliding rule.
func (m *takes) windows(i int) []limits.Window {
	if p := m.policies[i]; p.Algorithm == limits.Duplicate {
		return []limits.Window{{Max: p.Max, PerMS: p.PerMS}}
	}
	return m.policies[i].Windows
}

func subjectOf(i int, account string) string { return fmt.Sprint(i, " ", account) }

// answer returns the expected answer to a take as text. If counts is true, it also counts the take.
func (m *takes) answer(one modelTake, counts bool) string {
	var since time.Time
	a := limits.Taken{Allowed: true}
	for i := range m.policies {
		began := m.know(i, counts)
		if counts {
			m.mend(subjectOf(i, one.account))
		}
		if !m.whole(i, began) && began.After(since) {
			since = began
		}
		s := m.standing(i, one.account, one.cost)
		a.Items = append(a.Items, s)
		a.Allowed = a.Allowed && !s.Refuses
	}
	a.Since = since
	known, is := m.said(one)
	is = is && known.back < known.cost
	if is && known.cost != one.cost {
		a.Allowed, a.OtherCost = false, true
	}
	if is && known.cost == one.cost {
		a.Allowed, a.Repeated = true, true
		for i := range a.Items {
			a.Items[i].Wait = 0
		}
	}
	if a.Allowed && !a.Repeated && counts {
		for i := range m.policies {
			m.count(i, one)
			a.Items[i] = m.standing(i, one.account, one.cost)
			a.Items[i].Wait = 0
		}
		if one.id != "" {
			one.at = m.now
			m.ids[one.id+one.account] = one
		}
	}
	for _, s := range a.Items {
		a.Wait = max(a.Wait, s.Wait)
	}
	return showTaken(a)
}

func (m *takes) said(one modelTake) (modelTake, bool) {
	known, is := m.ids[one.id+one.account]
	return known, is && one.id != "" && m.now.Sub(known.at) < limits.RememberTakes
}

func (m *takes) longest(i int) time.Duration { return m.forms["plain"][i].Longest() }

// know returns the time since which a rule counts. If counts is true and the rule is unknown, the
// rule begins to count now.
func (m *takes) know(i int, counts bool) time.Time {
	const day = 24 * time.Hour
	began, known := m.since[i]
	if known && m.redis.endsKeys() && m.now.Sub(m.renewed[i]) >= m.longest(i)+32*day {
		known = false
	}
	if !known || began.After(m.now) {
		if !known {
			began = m.now
		}
	}
	if counts && (!known || m.now.Sub(m.renewed[i]) > day) {
		if began.After(m.now) {
			began = m.now
		}
		m.since[i], m.renewed[i] = began, m.now
	}
	if began.After(m.now) {
		began = m.now
	}
	return began
}

// whole reports whether the rule has counted for its whole current window.
func (m *takes) whole(i int, began time.Time) bool {
	if p := m.policies[i]; p.Algorithm == limits.Calendar {
		return !began.After(m.calendar(i, m.now)[0])
	}
	return m.now.Sub(began) >= m.longest(i)
}

// calendar returns the start and the end of the period that contains a time.
func (m *takes) calendar(i int, at time.Time) [2]time.Time {
	zone, _ := time.LoadLocation(m.policies[i].Timezone)
	name := func(at time.Time) string {
		at = at.In(zone)
		switch m.policies[i].Period {
		case limits.Week:
			y, w := at.ISOWeek()
			return fmt.Sprint(y, w)
		case limits.Month:
			return at.Format("2006-01")
		}
		return at.Format(time.DateOnly)
	}
	from := at.Truncate(quarter) // in the zones of the test, all periods begin at a quarter of an hour
	to := from
	for name(from.Add(-time.Millisecond)) == name(at) {
		from = from.Add(-quarter)
	}
	for name(to) == name(at) {
		to = to.Add(quarter)
	}
	return [2]time.Time{from, to}
}

// mend replaces future times with the current time.
func (m *takes) mend(subject string) {
	times := slices.Clone(m.times[subject])
	for i, at := range times {
		if at.After(m.now) {
			times[i] = m.now
		}
	}
	if len(times) > 0 {
		m.times[subject] = times
	}
}

func (m *takes) earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// window returns the start, the end and the count of the window of a rule that only counts.
func (m *takes) window(i int, account string) (from, to time.Time, n int64) {
	subject := subjectOf(i, account)
	begin, is := m.begin[subject]
	n = m.n[subject]
	if p := m.policies[i]; p.Algorithm == limits.Fixed {
		begin = m.earliest(begin, m.now)
		if !is || !m.now.Before(begin.Add(millis(p.PerMS))) {
			begin, n = m.now, 0
		}
		return begin, begin.Add(millis(p.PerMS)), n
	}
	period := m.calendar(i, m.now)
	if !is || begin.Before(period[0]) {
		n = 0
	}
	return period[0], period[1], n
}

// standing returns the use of an account, and how long a cost has to wait.
func (m *takes) standing(i int, account string, cost int64) limits.Standing {
	windows := m.windows(i)
	if len(windows) == 0 {
		from, to, n := m.window(i, account)
		s := limits.Standing{Used: n, Max: m.policies[i].Max}
		if s.Remaining = max(s.Max-n, 0); n > 0 || m.policies[i].Algorithm == limits.Calendar {
			s.Reset = to.Sub(m.now)
		}
		if s.Refuses = n+cost > s.Max; s.Refuses {
			s.Wait = to.Sub(m.now)
		}
		_ = from
		return s
	}
	var least limits.Standing
	var wait time.Duration
	for k, w := range windows {
		var inside []time.Time
		for _, at := range m.times[subjectOf(i, account)] {
			if at.After(m.now.Add(-millis(w.PerMS))) {
				inside = append(inside, m.earliest(at, m.now))
			}
		}
		s := limits.Standing{Window: k, Used: int64(len(inside)), Max: w.Max}
		if s.Remaining = max(w.Max-s.Used, 0); s.Used > 0 {
			s.Reset = inside[s.Used-1].Add(millis(w.PerMS)).Sub(m.now)
		}
		if s.Used+cost > w.Max {
			wait = max(wait, inside[w.Max-cost].Add(millis(w.PerMS)).Sub(m.now))
		}
		if left, other := w.Max-s.Used, least.Max-least.Used; k == 0 || left < other || left == other && s.Reset > least.Reset {
			least = s
		}
	}
	least.Wait, least.Refuses = wait, wait > 0
	return least
}

func (m *takes) count(i int, one modelTake) {
	subject := subjectOf(i, one.account)
	if len(m.windows(i)) == 0 {
		from, _, n := m.window(i, one.account)
		m.begin[subject], m.n[subject] = from, n+one.cost
		return
	}
	var times []time.Time
	for range one.cost {
		times = append(times, m.now)
	}
	for _, at := range m.times[subject] {
		if at.After(m.now.Add(-m.longest(i))) {
			times = append(times, at)
		}
	}
	m.times[subject] = times
}

// returned returns how much of a take has been given back in total.
func (m *takes) returned(one modelTake) int64 {
	known, is := m.said(one)
	if !is {
		return 0
	}
	want := min(one.cost, known.cost)
	if more := want - known.back; more > 0 {
		for i := range m.policies {
			m.uncount(i, known, more)
		}
		known.back = want
		m.ids[one.id+one.account] = known
	}
	return max(want, known.back)
}

func (m *takes) uncount(i int, one modelTake, n int64) {
	subject := subjectOf(i, one.account)
	if len(m.windows(i)) > 0 {
		m.times[subject] = slices.DeleteFunc(slices.Clone(m.times[subject]), func(at time.Time) bool {
			if at.Equal(one.at) {
				n--
				return n >= 0
			}
			return false
		})
		return
	}
	begin, is := m.begin[subject]
	if p := m.policies[i]; p.Algorithm == limits.Fixed {
		is = is && !one.at.Before(begin) && one.at.Before(begin.Add(millis(p.PerMS)))
	} else {
		began, known := m.since[i]
		is = is && begin.Equal(m.calendar(i, one.at)[0]) && (!known || !began.After(one.at))
	}
	if !is {
		return
	}
	if m.n[subject] -= n; m.n[subject] <= 0 {
		delete(m.begin, subject)
		delete(m.n, subject)
	}
}

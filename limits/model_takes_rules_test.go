package limits_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// This file contains the plain model of takes (requests to limit sets): functions that compute what each policy must answer.

// slidingWindows returns the windows of rule i. The list is empty if the rule has no sliding windows.
func (m *takesModel) slidingWindows(i int) []policy.Window {
	if p := m.policies[i]; p.Algorithm == policy.Duplicate {
		return []policy.Window{{Max: p.Max, PerMS: p.PerMS}}
	}
	return m.policies[i].Windows
}

func subjectName(i int, account string) string { return fmt.Sprint(i, " ", account) }

// expectedAnswer returns, as text, the answer that the limiter must give to a take. If isCounted is true, the model also counts the take.
func (m *takesModel) expectedAnswer(take modelTake, isCounted bool) string {
	var since time.Time
	a := limits.TakeResult{Allowed: true}
	for i := range m.policies {
		began := m.countedSince(i, isCounted)
		if isCounted {
			m.clampFutureTimes(subjectName(i, take.account))
		}
		if !m.coversWindow(i, began) && began.After(since) {
			since = began
		}
		s := m.expectedStanding(i, take.account, take.cost)
		a.Items = append(a.Items, s)
		a.Allowed = a.Allowed && !s.Refuses
	}
	a.Since = since
	known, is := m.rememberedTake(take)
	is = is && known.givenBack < known.cost
	if is && known.cost != take.cost {
		a.Allowed, a.OtherCost = false, true
	}
	if is && known.cost == take.cost {
		a.Allowed, a.Repeated = true, true
		for i := range a.Items {
			a.Items[i].Wait = 0
		}
	}
	if a.Allowed && !a.Repeated && isCounted {
		for i := range m.policies {
			m.countTake(i, take)
			a.Items[i] = m.expectedStanding(i, take.account, take.cost)
			a.Items[i].Wait = 0
		}
		if take.id != "" {
			take.at = m.now
			m.takeByID[take.id+take.account] = take
		}
	}
	for _, s := range a.Items {
		a.Wait = max(a.Wait, s.Wait)
	}
	return takenText(a)
}

func (m *takesModel) rememberedTake(take modelTake) (modelTake, bool) {
	known, is := m.takeByID[take.id+take.account]
	return known, is && take.id != "" && m.now.Sub(known.at) < limits.TakeIDLifetime
}

func (m *takesModel) longestWindow(i int) time.Duration { return m.rules[i].LongestWindow() }

// countedSince returns the time at which rule i began to count. If the rule is unknown and isCounted is true, the rule begins to count now.
func (m *takesModel) countedSince(i int, isCounted bool) time.Time {
	const day = 24 * time.Hour
	began, known := m.countsSince[i]
	if known && m.redis.canExpireKeys() && m.now.Sub(m.renewedAt[i]) >= m.longestWindow(i)+32*day {
		known = false
	}
	if !known || began.After(m.now) {
		if !known {
			began = m.now
		}
	}
	if isCounted && (!known || m.now.Sub(m.renewedAt[i]) > day) {
		if began.After(m.now) {
			began = m.now
		}
		m.countsSince[i], m.renewedAt[i] = began, m.now
	}
	if began.After(m.now) {
		began = m.now
	}
	return began
}

// coversWindow reports whether rule i, which began to count at the time began, has counted for its whole current
// window.
func (m *takesModel) coversWindow(i int, began time.Time) bool {
	if p := m.policies[i]; p.Algorithm == policy.Calendar {
		return !began.After(m.calendarPeriod(i, m.now)[0])
	}
	return m.now.Sub(began) >= m.longestWindow(i)
}

// calendarPeriod returns the start and the end of a calendar period of rule i: the period that contains the time in the parameter at.
func (m *takesModel) calendarPeriod(i int, at time.Time) [2]time.Time {
	zone, _ := time.LoadLocation(m.policies[i].Timezone)
	name := func(at time.Time) string {
		at = at.In(zone)
		switch m.policies[i].Period {
		case policy.Week:
			y, w := at.ISOWeek()
			return fmt.Sprint(y, w)
		case policy.Month:
			return at.Format("2006-01")
		}
		return at.Format(time.DateOnly)
	}
	from := at.Truncate(quarter) // in the time zones of the test, all periods begin at a full quarter of an hour
	to := from
	for name(from.Add(-time.Millisecond)) == name(at) {
		from = from.Add(-quarter)
	}
	for name(to) == name(at) {
		to = to.Add(quarter)
	}
	return [2]time.Time{from, to}
}

// clampFutureTimes replaces each counted time of the subject that is in the future with the present time.
func (m *takesModel) clampFutureTimes(subject string) {
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

func (m *takesModel) earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// countingWindow returns the current window of rule i (a fixed window or a calendar period): its start, its end and
// the number counted for the account.
func (m *takesModel) countingWindow(i int, account string) (from, to time.Time, n int64) {
	subject := subjectName(i, account)
	begin, is := m.windowStart[subject]
	n = m.counts[subject]
	if p := m.policies[i]; p.Algorithm == policy.Fixed {
		begin = m.earliest(begin, m.now)
		if !is || !m.now.Before(begin.Add(millisToDuration(p.PerMS))) {
			begin, n = m.now, 0
		}
		return begin, begin.Add(millisToDuration(p.PerMS)), n
	}
	period := m.calendarPeriod(i, m.now)
	if !is || begin.Before(period[0]) {
		n = 0
	}
	return period[0], period[1], n
}

// expectedStanding returns how much of rule i the account has used, and how long a take with this cost must wait.
func (m *takesModel) expectedStanding(i int, account string, cost int64) limits.WindowUse {
	windows := m.slidingWindows(i)
	if len(windows) == 0 {
		from, to, n := m.countingWindow(i, account)
		s := limits.WindowUse{Used: n, Max: m.policies[i].Max}
		if s.Remaining = max(s.Max-n, 0); n > 0 || m.policies[i].Algorithm == policy.Calendar {
			s.Reset = to.Sub(m.now)
		}
		if s.Refuses = n+cost > s.Max; s.Refuses {
			s.Wait = to.Sub(m.now)
		}
		_ = from
		return s
	}
	var least limits.WindowUse
	var wait time.Duration
	for k, w := range windows {
		var inside []time.Time
		for _, at := range m.times[subjectName(i, account)] {
			if at.After(m.now.Add(-millisToDuration(w.PerMS))) {
				inside = append(inside, m.earliest(at, m.now))
			}
		}
		s := limits.WindowUse{Window: k, Used: int64(len(inside)), Max: w.Max}
		if s.Remaining = max(w.Max-s.Used, 0); s.Used > 0 {
			s.Reset = inside[s.Used-1].Add(millisToDuration(w.PerMS)).Sub(m.now)
		}
		if s.Used+cost > w.Max {
			wait = max(wait, inside[w.Max-cost].Add(millisToDuration(w.PerMS)).Sub(m.now))
		}
		if left, other := w.Max-s.Used, least.Max-least.Used; k == 0 || left < other || left == other && s.Reset > least.Reset {
			least = s
		}
	}
	least.Wait, least.Refuses = wait, wait > 0
	return least
}

func (m *takesModel) countTake(i int, take modelTake) {
	subject := subjectName(i, take.account)
	if len(m.slidingWindows(i)) == 0 {
		from, _, n := m.countingWindow(i, take.account)
		m.windowStart[subject], m.counts[subject] = from, n+take.cost
		return
	}
	var times []time.Time
	for range take.cost {
		times = append(times, m.now)
	}
	for _, at := range m.times[subject] {
		if at.After(m.now.Add(-m.longestWindow(i))) {
			times = append(times, at)
		}
	}
	m.times[subject] = times
}

// returnTake gives back a part of a take. It returns how much of the take has been given back in total.
func (m *takesModel) returnTake(take modelTake) int64 {
	known, is := m.rememberedTake(take)
	if !is {
		return 0
	}
	want := min(take.cost, known.cost)
	if more := want - known.givenBack; more > 0 {
		for i := range m.policies {
			m.uncount(i, known, more)
		}
		known.givenBack = want
		m.takeByID[take.id+take.account] = known
	}
	return max(want, known.givenBack)
}

func (m *takesModel) uncount(i int, take modelTake, n int64) {
	subject := subjectName(i, take.account)
	if len(m.slidingWindows(i)) > 0 {
		m.times[subject] = slices.DeleteFunc(slices.Clone(m.times[subject]), func(at time.Time) bool {
			if at.Equal(take.at) {
				n--
				return n >= 0
			}
			return false
		})
		return
	}
	begin, is := m.windowStart[subject]
	if p := m.policies[i]; p.Algorithm == policy.Fixed {
		is = is && !take.at.Before(begin) && take.at.Before(begin.Add(millisToDuration(p.PerMS)))
	} else {
		began, known := m.countsSince[i]
		is = is && begin.Equal(m.calendarPeriod(i, take.at)[0]) && (!known || !began.After(take.at))
	}
	if !is {
		return
	}
	if m.counts[subject] -= n; m.counts[subject] <= 0 {
		delete(m.windowStart, subject)
		delete(m.counts, subject)
	}
}

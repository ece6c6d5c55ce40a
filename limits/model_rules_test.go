package limits_test

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// This file contains the plain model of starts: functions that compute what each policy must answer.

func drawPolicy(t *rapid.T) policy.Policy {
	p := policy.Policy{Name: "n", Per: "tags.account"}
	most := rapid.Int64Range(1, 4)
	per := rapid.SampledFrom([]int64{1, 1000, 20_000, 3_600_000, 86_400_000})
	switch p.Algorithm = rapid.SampledFrom([]policy.Algorithm{policy.Sliding, policy.Sliding, policy.Fixed, policy.Calendar}).Draw(t, "algorithm"); p.Algorithm {
	case policy.Sliding:
		for i, per := range rapid.SliceOfNDistinct(per, 1, 3, rapid.ID[int64]).Draw(t, "windows") {
			p.Windows = append(p.Windows, policy.Window{Max: most.Draw(t, fmt.Sprintf("max %d", i)), PerMS: per})
		}
	case policy.Calendar:
		p.Max, p.Timezone = most.Draw(t, "max"), rapid.SampledFrom([]string{"", "Asia/Shanghai", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"}).Draw(t, "zone")
		p.Period = rapid.SampledFrom([]policy.Period{policy.Day, policy.Week, policy.Month}).Draw(t, "period")
	default:
		p.Max, p.PerMS = most.Draw(t, "max"), per.Draw(t, "per")
	}
	return p
}

// assumeLatestWindows moves the start of each window of a fixed rule to the latest possible time. A rebuild from the history does the same.
func (m *startsModel) assumeLatestWindows() {
	clear(m.windowStart)
	clear(m.windowCount)
	for _, s := range m.counted {
		if m.now.Sub(s.at) >= time.Duration(m.policy.PerMS)*time.Millisecond {
			continue
		}
		m.windowCount[s.account]++
		if s.at.After(m.windowStart[s.account]) {
			m.windowStart[s.account] = s.at
		}
	}
}

// countStart adds a start to the model. The start counts at the time of its reservation.
func (m *startsModel) countStart(s modelStart) {
	m.counted = append(m.counted, s)
	per := time.Duration(m.policy.PerMS) * time.Millisecond
	if since, ok := m.windowStart[s.account]; !ok || !s.at.Before(since.Add(per)) {
		m.windowStart[s.account], m.windowCount[s.account] = s.at, 0
	}
	m.windowCount[s.account]++
}

// expectedAnswer returns, as text, the answer that the limiter must give to a check of this start.
func (m *startsModel) expectedAnswer(s modelStart) string {
	groups := make(map[string]time.Time)
	for _, o := range m.openStarts {
		if _, seen := groups[o.group]; !seen && o.account == s.account && o.group != s.group {
			groups[o.group] = o.at
		}
	}
	switch m.policy.Algorithm {
	case policy.Sliding:
		return m.expectedSliding(s, groups)
	case policy.Calendar:
		return m.expectedCalendar(s, groups)
	}
	end := m.windowStart[s.account].Add(time.Duration(m.policy.PerMS) * time.Millisecond)
	n := m.windowCount[s.account]
	if !m.now.Before(end) {
		n = 0
	}
	return windowAnswer(n, len(groups), int(m.policy.Max), end.Sub(m.now))
}

func windowAnswer(n, pending, maxStarts int, wait time.Duration) string {
	switch {
	case n >= maxStarts:
		return fmt.Sprintf("shut for %s by 0", wait)
	case n+pending >= maxStarts:
		return "shut by reservations"
	}
	return "passes"
}

func (m *startsModel) expectedSliding(s modelStart, groups map[string]time.Time) string {
	soft, wait, by := false, time.Duration(0), 0
	for i, w := range m.policy.Windows {
		per := time.Duration(w.PerMS) * time.Millisecond
		var inside []time.Duration // ages of the starts in the window
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

func (m *startsModel) expectedCalendar(s modelStart, groups map[string]time.Time) string {
	name := func(at time.Time) string {
		at = at.In(m.zone)
		switch m.policy.Period {
		case policy.Week:
			y, w := at.ISOWeek()
			return fmt.Sprint(y, w)
		case policy.Month:
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
	next, now := m.now.Truncate(quarter), name(m.now) // in the time zones of the test, all periods begin at a full quarter of an hour
	for name(next) == now {
		next = next.Add(quarter)
	}
	return windowAnswer(n, len(groups), int(m.policy.Max), next.Sub(m.now))
}

func answerText(a limits.Answer) string {
	switch {
	case a.Status == limits.StatusPassed:
		return "passes"
	case a.Status != limits.StatusLimited:
		return fmt.Sprintf("status %d", a.Status)
	case a.LongestRefusal().Pending:
		return "shut by reservations"
	}
	return fmt.Sprintf("shut for %s by %d", a.LongestRefusal().Wait, a.LongestRefusal().Window)
}

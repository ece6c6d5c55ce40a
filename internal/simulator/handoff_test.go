package simulator

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHandoffIsTakenApart(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	starts := map[int64]Start{
		1: {Woken: at(5), Asked: at(6), Granted: at(9)},    // woken by push
		2: {Asked: at(-20_000), Granted: at(9)},            // held by long poll
		3: {Asked: at(300), Granted: at(302)},              // reported by itself
		4: {Woken: at(-50), Asked: at(7), Granted: at(11)}, // woken before the slot was left
	}
	start := func(token int64) (Start, bool) { s, ok := starts[token]; return s, ok }
	for _, c := range []struct {
		token, entered                int
		whole, told, granted, further int
	}{{1, 10, 10, 5, 4, 1}, {2, 10, 10, 0, 9, 1}, {3, 310, 310, 300, 2, 8}, {4, 13, 13, 0, 11, 2}, {5, 4, 4, 0, 0, 0}} {
		h := measureHandoff([]Gap{{Token: int64(c.token), Left: at(0), Entered: at(c.entered)}}, start)
		for name, q := range map[string]struct {
			got  Quantiles
			want int
		}{"whole": {h.Total, c.whole}, "told": {h.Notified, c.told}, "granted": {h.Granted, c.granted}, "entered": {h.Entered, c.further}} {
			if want := time.Duration(q.want) * time.Millisecond; q.got != (Quantiles{want, want}) {
				t.Errorf("token %d, %s: %v, want %s", c.token, name, q.got, want)
			}
		}
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var times []time.Duration
	for i := range 200 {
		times = append(times, time.Duration(200-i)*time.Millisecond)
	}
	if got := quantiles(times); got != (Quantiles{100 * time.Millisecond, 198 * time.Millisecond}) {
		t.Error(got)
	}
	if text := quantiles(nil).String(); text != "not measured" {
		t.Error(text)
	}
}

// TestTurnover checks how the idle time of slots is computed. Of three slots, one is used twice, one once and one never. The idle times and the
// visits must add up to the duration of the run, multiplied by the number of slots.
func TestTurnover(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	visits := newSlotTurnover()
	visits.recordEntry(0, 1, at(1))
	visits.recordExit(0, at(3))
	visits.recordEntry(0, 2, at(7))
	visits.recordExit(0, at(8))
	visits.recordEntry(1, 3, at(2))
	visits.recordExit(1, at(9))
	before, after := visits.idleAtStartAndEnd(3, at(0), at(10))
	if before != 13*time.Second || after != 3*time.Second {
		t.Errorf("before %s, after %s; want 13 s and 3 s", before, after)
	}
	if want := (Gap{Token: 2, Left: at(3), Entered: at(7)}); len(visits.gaps) != 1 || visits.gaps[0] != want {
		t.Errorf("gaps %v, want %v", visits.gaps, want)
	}
	for i := range int64(2 * maxGaps) {
		visits.recordExit(0, at(10))
		visits.recordEntry(0, i, at(10))
	}
	if len(visits.gaps) != maxGaps {
		t.Errorf("%d gaps remembered, want %d", len(visits.gaps), maxGaps)
	}
}

func TestLatest(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	// Four tasks are due, one in each second. The second one is granted last.
	late, wait := longestDelays([]Start{{Granted: at(0)}, {Granted: at(5)}, {Granted: at(2)}, {Granted: at(3)}}, at(0), 4*time.Second)
	if late != 4*time.Second || wait != 5*time.Second {
		t.Errorf("latest %s after its due time, longest wait %s; want 4 s and 5 s", late, wait)
	}
}

func TestHistogramOfAPool(t *testing.T) {
	t.Parallel()
	const name = "dispatcher_handoff_duration_seconds"
	page := `# HELP ` + name + ` Time.
# TYPE ` + name + ` histogram
` + name + `_bucket{pool="p",le="0.001"} 10
` + name + `_bucket{pool="p",le="0.01"} 100
` + name + `_bucket{pool="p",le="+Inf"} 101
` + name + `_sum{pool="p"} 4
` + name + `_bucket{pool="other",le="0.001"} 1000
# TYPE other histogram
other_bucket{pool="p",le="0.001"} 1000
`
	h, err := parseHistogram(strings.NewReader(page), name, "p")
	if err != nil || len(h) != 3 {
		t.Fatalf("buckets %v, %v", h, err)
	}
	for q, want := range map[float64]time.Duration{
		0.50: time.Millisecond + 4050*time.Microsecond, // (50.5 - 10) / 90 of its bucket
		0.01: 101 * time.Microsecond,
		1:    10 * time.Millisecond, // beyond the last bound
	} {
		if got := h.quantile(q); (got - want).Abs() > time.Microsecond {
			t.Errorf("quantile %v: %s, want %s", q, got, want)
		}
	}
	if got := h.observedSince(h).quantile(0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
}

// TestIntroducedFleet checks a simulated fleet that is introduced first: every device has reported before the tasks
// are queued. OnEnded is called at the end.
func TestIntroducedFleet(t *testing.T) {
	t.Parallel()
	f, server := newFake(t)
	f.grantsNothing = true
	c := testConfig(server.URL)
	c.Introduce, c.NotBefore = true, time.Millisecond
	began, ended := 0, 0
	c.OnBegan = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		began, f.grantsNothing = f.receivedReports, false
	}
	c.OnEnded = func() { ended++ }
	s, _ := runAgainstFake(t, f, c)
	if err := s.Err(); err != nil || began < c.Devices || ended != 1 {
		t.Errorf("%v; %d reports before the tasks were queued, want %d or more; ended %d times", err, began, c.Devices, ended)
	}
	whole := time.Duration(s.Capacity) * s.Makespan
	if sum := s.External.InsideTime + s.SlotIdle.Start + s.SlotIdle.Between + s.SlotIdle.End; sum != whole || s.SlotIdle.Start <= 0 || s.SlotIdle.Between <= 0 {
		t.Errorf("inside %s and idle %+v are not the %s of all slots", s.External.InsideTime, s.SlotIdle, whole)
	}
	var out bytes.Buffer
	if err := s.Print(&out); err != nil || !strings.Contains(out.String(), "slot-seconds while tasks waited") || s.Handoff.Total == (Quantiles{}) {
		t.Errorf("Print: %v\n%s", err, out.String())
	}
}

// TestIdeal checks the shortest possible time for four tasks in two slots: each task starts in the slot that becomes
// free first. A device that is gone holds its slot until its lease ends, however long the lease is.
func TestIdeal(t *testing.T) {
	t.Parallel()
	w := workload{taskWork: []time.Duration{time.Second, 3 * time.Second, time.Second, 2 * time.Second}}
	if got := w.idealMakespan(2, 0, nil); got != 4*time.Second {
		t.Errorf("%s, want 4 s", got)
	}
	if got := w.idealMakespan(2, time.Second, nil); got != 7*time.Second {
		t.Errorf("with a second more each: %s, want 7 s", got)
	}
	w.lease = 10 * time.Second
	if got := w.idealMakespan(2, 0, []Start{{}, {}, {Gone: true}, {}}); got != 11*time.Second {
		t.Errorf("with one that is gone: %s, want 11 s", got)
	}
	if got := w.idealMakespan(2, time.Second, []Start{{Gone: true}}); got != 10*time.Second {
		t.Errorf("with the first one gone, and a second more each: %s, want 10 s", got)
	}
}

// TestGoneInTheOrderOfTheTasks checks that the starts are returned in the order of the tasks, whatever the order in which the tasks began.
func TestGoneInTheOrderOfTheTasks(t *testing.T) {
	t.Parallel()
	l := newResultLog()
	for _, s := range []Start{{Task: 7, Token: 1}, {Task: 3, Token: 2, Gone: true}, {Task: 5, Token: 3}, {Task: 3, Token: 4}} {
		l.recordStart(s)
	}
	var gone []bool
	for _, s := range l.startsByTask() {
		gone = append(gone, s.Gone)
	}
	if !slices.Equal(gone, []bool{true, false, false}) {
		t.Errorf("%v", gone)
	}
}

package simulator

import (
	"net/http"
	"testing"
	"time"
)

// unaccepted grants a task whose result it never acknowledges.
func unaccepted(r report, task, token int64) map[string]any {
	a := granting(r, 60_000, 1)
	a["acks"], a["report_after_ms"] = nil, 200
	grant, _ := a["task"].(map[string]any)
	grant["id"], grant["token"] = task, token
	return a
}

// TestAResultThatIsNeverAcceptedIsNotSentWithoutAPause: the grant comes again and
// again, and its result goes up at once only the first time, whether the
// report before it held the result or not.
func TestAResultThatIsNeverAcceptedIsNotSentWithoutAPause(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(n int, r report) any{
		"in each report": func(_ int, r report) any { return unaccepted(r, 7, 70) },
		"behind another one": func(n int, r report) any {
			switch {
			case n == 1:
				return unaccepted(r, 7, 70)
			case len(r.Results) > 1:
				return http.StatusRequestEntityTooLarge // now they go one by one
			}
			return unaccepted(r, 8, 80)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := play(t, Faults{}, answer)
			for range 4 { // begins, and has its results in the journal
				s.next()
			}
			atOnce, last := 0, s.next().at
			for range 8 {
				h := s.next()
				if len(h.Results) == 0 {
					t.Fatalf("%+v, want the result", h.report)
				}
				if h.at.Sub(last) < 150*time.Millisecond {
					atOnce++
				}
				last = h.at
			}
			if atOnce > 1 {
				t.Errorf("%d of 8 reports were sent at once, want 1 at most", atOnce)
			}
		})
	}
}

package simulator

import (
	"net/http"
	"testing"
	"time"
)

// unacknowledgedGrant returns the reply of a server that grants a task and never acknowledges its result.
func unacknowledgedGrant(r report, task, token int64) map[string]any {
	a := grantReply(r, 60_000, 1)
	a["acks"], a["report_after_ms"] = nil, 200
	grant, _ := a["task"].(map[string]any)
	grant["id"], grant["token"] = task, token
	return a
}

// TestAResultThatIsNeverAcceptedIsNotSentWithoutAPause checks a server that redelivers the same grant again and
// again. The device may send its result again at once only the first time. Later it must pause, whether or not its
// previous report contained the result.
func TestAResultThatIsNeverAcceptedIsNotSentWithoutAPause(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(n int, r report) any{
		"in each report": func(_ int, r report) any { return unacknowledgedGrant(r, 7, 70) },
		"behind another one": func(n int, r report) any {
			switch {
			case n == 1:
				return unacknowledgedGrant(r, 7, 70)
			case len(r.Results) > 1:
				return http.StatusRequestEntityTooLarge // from now on, the results are sent one by one
			}
			return unacknowledgedGrant(r, 8, 80)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScene(t, Faults{}, answer, func(s *deviceScene) {
				for range 4 { // the grants have begun and their results are in the journal
					s.nextReport()
				}
				atOnce, last := 0, s.nextReport().arrivedAt
				for range 8 {
					h := s.nextReport()
					if len(h.Results) == 0 {
						s.t.Fatalf("%+v, want the result", h.report)
					}
					if h.arrivedAt.Sub(last) < 150*time.Millisecond {
						atOnce++
					}
					last = h.arrivedAt
				}
				if atOnce > 1 {
					s.t.Errorf("%d of 8 reports were sent at once, want 1 at most", atOnce)
				}
			})
		})
	}
}

package simulator

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
)

// TestTasksOfOtherPoolsTakeNoSlot checks a simulated device with tasks of several pools: tasks of other pools do
// not use the external system, which checks only its own pool.
func TestTasksOfOtherPoolsTakeNoSlot(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(n int, r report) any {
		if n > 1 {
			return idleReply(r)
		}
		a := grantReply(r, 60_000, 1)
		if task, ok := a["task"].(map[string]any); ok {
			task["pool"] = "other"
		}
		return a
	}, func(s *deviceScene) {
		if h := s.waitForReport(hasResult); h.Results[0].Status != "succeeded" {
			s.t.Errorf("%+v", h.Results[0])
		}
		if got := s.external.Stats().Arrivals; got != 0 {
			s.t.Errorf("%d arrivals, want none", got)
		}
	})
}

func TestAGrantThatIsOverIsDropped(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(_ int, r report) any { return grantReply(r, 5, 1) }, func(s *deviceScene) {
		for range 4 {
			if h := s.nextReport(); len(h.Running)+len(h.Results) > 0 {
				s.t.Fatalf("took a grant that was over: %+v", h.report)
			}
		}
		if got := s.external.Stats().Arrivals; got != 0 || s.fleet.Stats().Dropped == 0 {
			s.t.Errorf("arrivals %d, dropped %d", got, s.fleet.Stats().Dropped)
		}
	})
}

func TestAGrantForAnotherReportIsDropped(t *testing.T) {
	t.Parallel()
	for _, re := range []string{"", "someone-else-1"} {
		t.Run(fmt.Sprintf("re %q", re), func(t *testing.T) {
			t.Parallel()
			runScene(t, Faults{}, func(_ int, r report) any {
				a := grantReply(r, 60_000, 1)
				a["re"] = re
				return a
			}, func(s *deviceScene) {
				for range 4 {
					if h := s.nextReport(); len(h.Running)+len(h.Results) > 0 {
						s.t.Fatalf("took a stranger's grant: %+v", h.report)
					}
				}
				if got := s.external.Stats().Arrivals; got != 0 || s.fleet.Stats().Dropped == 0 {
					s.t.Errorf("arrivals %d, dropped %d", got, s.fleet.Stats().Dropped)
				}
			})
		})
	}
}

// TestTheLeaseCountsFromTheReport checks a reply that is delayed by a second: the device counts its lease from the
// time at which it sent the report.
func TestTheLeaseCountsFromTheReport(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(n int, r report) any {
		switch n {
		case 1:
			<-time.After(time.Second)
			return grantReply(r, 1600, 60_000)
		default:
			a := idleReply(r)
			a["renewed"], a["reason"] = nil, "unavailable" // nothing can be confirmed
			return a
		}
	}, func(s *deviceScene) {
		first := s.nextReport()
		h := s.waitForReport(hasResult)
		if after := h.arrivedAt.Sub(first.arrivedAt); after != 1600*time.Millisecond {
			s.t.Errorf("the result came %s after the report, want 1.6 s", after)
		}
		if h.Results[0].Status != "failed" || h.Results[0].Error == "" || h.devicesInside != 0 {
			s.t.Errorf("result %+v, inside %d", h.Results[0], h.devicesInside)
		}
		if got := s.fleet.Stats().LeasesEnded; got != 1 {
			s.t.Errorf("leases ended %d, want 1", got)
		}
	})
}

func TestHeldTimeLengthensTheLease(t *testing.T) {
	t.Parallel()
	at := time.Now()
	if got := leaseEnd(sentReport{at: at}, 1000, 250).Sub(at); got != 1250*time.Millisecond {
		t.Errorf("lease ends after %s, want 1.25 s", got)
	}
}

func TestRunningTasksAreRenewedAtHalfOfTheLease(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(n int, r report) any {
		if n == 1 {
			return grantReply(r, 3000, 3600)
		}
		return idleReply(r)
	}, func(s *deviceScene) {
		first := s.nextReport()
		h := s.nextReport()
		if len(h.Running) != 1 || h.Running[0].Task != 7 || h.Running[0].Token != 70 {
			s.t.Fatalf("second report %+v, want task 7 running", h.report)
		}
		if after := h.arrivedAt.Sub(first.arrivedAt); after != 1500*time.Millisecond {
			s.t.Errorf("renewed after %s, want 1.5 s", after)
		}
		h = s.waitForReport(hasResult)
		if h.Results[0].Status != "succeeded" || len(h.Results[0].Output) == 0 || h.devicesInside != 0 {
			s.t.Errorf("result %+v, inside %d", h.Results[0], h.devicesInside)
		}
		if got := s.external.Stats().Arrivals; got != 1 {
			s.t.Errorf("arrivals %d, want 1", got)
		}
	})
}

// TestResultsAreSentUntilAnOutcome checks a simulated device with a result: every report contains the result until
// a reply has an outcome for it, whichever outcome this is.
func TestResultsAreSentUntilAnOutcome(t *testing.T) {
	t.Parallel()
	for _, outcome := range []string{"recorded", "duplicate", "late", "unknown", "rejected", "of a later version"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			runScene(t, Faults{}, func(n int, r report) any {
				switch n {
				case 1:
					return grantReply(r, 60_000, 1)
				case 2:
					return nil // the connection breaks
				case 3:
					return http.StatusServiceUnavailable
				case 4:
					return http.StatusFound
				case 5:
					return map[string]any{"re": r.ID, "reason": "unavailable", "report_after_ms": 10}
				case 6:
					a := idleReply(r)
					a["acks"] = []any{map[string]any{"task": 7, "token": 70, "outcome": outcome}}
					return a
				}
				return idleReply(r)
			}, func(s *deviceScene) {
				s.nextReport()
				var output string
				for n := 2; n <= 6; n++ {
					h := s.nextReport()
					if len(h.Results) != 1 || h.Results[0].Task != 7 || h.Results[0].Token != 70 {
						s.t.Fatalf("report %d: %+v, want the result", n, h.report)
					}
					if n > 2 && string(h.Results[0].Output) != output {
						s.t.Errorf("report %d: output %s, before %s", n, h.Results[0].Output, output)
					}
					output = string(h.Results[0].Output)
				}
				if h := s.nextReport(); len(h.Results) != 0 {
					s.t.Errorf("sent again after %q: %+v", outcome, h.Results)
				}
				if s.fleet.Unacknowledged() != 0 {
					s.t.Error("unsettled")
				}
			})
		})
	}
}

func TestARefusedResultIsDroppedAtLast(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(n int, r report) any {
		switch {
		case n == 1:
			return grantReply(r, 60_000, 1)
		case len(r.Results) > 0:
			return http.StatusUnprocessableEntity
		}
		return idleReply(r)
	}, func(s *deviceScene) {
		s.nextReport()
		if h := s.nextReport(); len(h.Results) != 1 || len(h.Results[0].Output) == 0 {
			s.t.Fatalf("first try %+v", h.report)
		}
		if h := s.nextReport(); len(h.Results) != 1 || len(h.Results[0].Output) != 0 {
			s.t.Fatalf("second try %+v, want no output", h.report)
		}
		if h := s.nextReport(); len(h.Results) != 0 {
			s.t.Fatalf("third try %+v, want none", h.report)
		}
		if got := s.fleet.Stats(); got.Discarded != 1 || got.Refused != 2 {
			s.t.Errorf("discarded %d, refused %d; want 1, 2", got.Discarded, got.Refused)
		}
	})
}

func TestForbiddenWaitsLong(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(int, report) any { return http.StatusForbidden }, func(s *deviceScene) {
		s.nextReport()
		await.True(s.t, "the expected state of the fleet", func() bool { return s.fleet.Stats().Refused == 1 })
		d := &device{dice: newDice(1, 1)}
		for times, limit := range []time.Duration{10 * time.Minute, 20 * time.Minute, 40 * time.Minute} {
			if w := d.randomBackoff(times, 10*time.Minute, forbiddenMax); w < 0 || w > limit+time.Millisecond {
				s.t.Errorf("wait %d: %s, want at most %s", times, w, limit)
			}
		}
		if w := d.randomBackoff(1000, 10*time.Minute, forbiddenMax); w > forbiddenMax+time.Millisecond {
			s.t.Errorf("wait %s, want at most 6 h", w)
		}
	})
}

func TestCancelStopsAndReportsAtOnce(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(n int, r report) any {
		switch n {
		case 1:
			return grantReply(r, 2000, 60_000)
		case 2:
			a := idleReply(r)
			a["renewed"] = nil
			a["cancel"] = []any{map[string]any{"task": 7, "token": 70, "why": "cancelled"}}
			return a
		}
		return idleReply(r)
	}, func(s *deviceScene) {
		s.nextReport()
		if h := s.nextReport(); h.devicesInside != 1 {
			s.t.Fatalf("inside %d when renewing, want 1", h.devicesInside)
		}
		h := s.nextReport()
		if len(h.Results) != 1 || h.Results[0].Status != "failed" || h.devicesInside != 0 || len(h.Running) != 0 {
			s.t.Errorf("after the cancel: %+v, inside %d", h.report, h.devicesInside)
		}
		if got := s.fleet.Stats(); got.Cancels != 1 || got.LeasesEnded != 0 {
			s.t.Errorf("cancels %d, leases ended %d; want 1, 0", got.Cancels, got.LeasesEnded)
		}
	})
}

func TestARedeliveredGrantRunsOnce(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(n int, r report) any {
		if n <= 3 { // granted, redelivered while the task runs, redelivered together with the acknowledgement
			return grantReply(r, 2000, 1500)
		}
		return idleReply(r)
	}, func(s *deviceScene) {
		s.nextReport()
		if h := s.nextReport(); len(h.Running) != 1 || len(h.Results) != 0 {
			s.t.Fatalf("second report %+v, want the task running", h.report)
		}
		h := s.nextReport()
		if len(h.Results) != 1 {
			s.t.Fatalf("third report %+v, want the result", h.report)
		}
		output := string(h.Results[0].Output)
		h = s.nextReport()
		if len(h.Results) != 0 && string(h.Results[0].Output) != output {
			s.t.Errorf("fourth report %+v", h.report)
		}
		if got := s.external.Stats().Arrivals; got != 1 {
			s.t.Errorf("arrivals %d, want 1", got)
		}
		if got := s.fleet.Stats(); got.Redeliveries != 1 || got.Dropped != 1 {
			s.t.Errorf("%+v, want the one while it ran taken, and the one with its acknowledgement dropped", got)
		}
	})
}

// TestALateGrantOfAnEndedTaskIsDropped checks a delayed reply that grants a task which has ended and was
// acknowledged: the device does not start the task again. It starts a grant that has a higher token.
func TestALateGrantOfAnEndedTaskIsDropped(t *testing.T) {
	t.Parallel()
	first := make(chan string, 1)
	runScene(t, Faults{}, func(n int, r report) any {
		switch n {
		case 1:
			first <- r.ID
			return grantReply(r, 60_000, 1)
		case 3:
			a := grantReply(r, 60_000, 1)
			a["re"] = <-first
			return a
		case 4:
			a := grantReply(r, 60_000, 1)
			if task, ok := a["task"].(map[string]any); ok {
				task["token"] = 71
			}
			return a
		}
		return idleReply(r)
	}, func(s *deviceScene) {
		s.nextReport()
		if h := s.nextReport(); len(h.Results) != 1 {
			s.t.Fatalf("second report %+v, want the result", h.report)
		}
		for _, report := range []string{"third", "fourth"} {
			if h := s.nextReport(); len(h.Results)+len(h.Running) != 0 {
				s.t.Fatalf("%s report %+v, want no result", report, h.report)
			}
		}
		if h := s.waitForReport(hasResult); h.Results[0].Token != 71 {
			s.t.Errorf("%+v, want the result of the newer grant", h.report)
		}
		if got := s.external.Stats().Arrivals; got != 2 {
			s.t.Errorf("arrivals %d, want 2", got)
		}
		if got := s.fleet.Stats(); got.Dropped != 1 || got.Violations != 0 {
			s.t.Errorf("%+v, want one grant dropped", got)
		}
	})
}

func TestASilentDeviceStaysToTheEndOfItsLease(t *testing.T) {
	t.Parallel()
	for _, late := range []float64{0, 1} {
		t.Run(fmt.Sprintf("late %v", late), func(t *testing.T) {
			t.Parallel()
			runScene(t, Faults{Silent: 1, Late: late}, func(n int, r report) any {
				if n == 1 {
					return grantReply(r, 1000, 1)
				}
				return idleReply(r)
			}, func(s *deviceScene) {
				first := s.nextReport()
				await.True(s.t, "the expected state of the fleet", func() bool { now := s.external.Stats(); return now.Arrivals == 1 && now.Inside == 0 })
				if after := time.Since(first.arrivedAt).Round(50 * time.Millisecond); after != time.Second {
					s.t.Errorf("left the external system after %s, want the lease of 1 s", after)
				}
				h := s.nextReport()
				if after := h.arrivedAt.Sub(first.arrivedAt); after < 2*time.Second {
					s.t.Errorf("reported again after %s, want a quiet time after the lease", after)
				}
				if got, want := len(h.Results), int(late); got != want {
					s.t.Errorf("%d results after the reboot, want %d", got, want)
				}
				if len(h.Running) != 0 {
					s.t.Errorf("remembers the task: %+v", h.report)
				}
			})
		})
	}
}

func TestARebootForgetsTheTaskAndRunsItAgain(t *testing.T) {
	t.Parallel()
	granted := 0
	runScene(t, Faults{Reboot: 0.97}, func(_ int, r report) any {
		if len(r.Results) == 0 && len(r.Running) == 0 && granted < 500 {
			granted++
			return grantReply(r, 60_000, 5)
		}
		return idleReply(r)
	}, func(s *deviceScene) {
		ids := map[string]bool{}
		h := s.waitForReport(func(h arrivedReport) bool {
			if ids[h.ID] {
				s.t.Errorf("report id %s twice", h.ID)
			}
			ids[h.ID] = true
			return hasResult(h)
		})
		if h.Results[0].Status != "succeeded" {
			s.t.Errorf("result %+v", h.Results[0])
		}
		stats := s.fleet.Stats()
		if stats.Reboots == 0 {
			s.t.Fatal("it never rebooted")
		}
		if x := s.external.Stats(); x.Arrivals != stats.Reboots+1 || x.StaleTokens != 0 {
			s.t.Errorf("arrivals %d after %d reboots, stale tokens %d", x.Arrivals, stats.Reboots, x.StaleTokens)
		}
	})
}

func TestADeviceComesWhenItWasTold(t *testing.T) {
	t.Parallel()
	runScene(t, Faults{}, func(_ int, r report) any {
		a := idleReply(r)
		a["report_after_ms"] = 700
		return a
	}, func(s *deviceScene) {
		first, second := s.nextReport(), s.nextReport()
		if after := second.arrivedAt.Sub(first.arrivedAt); after < 700*time.Millisecond || after > 735*time.Millisecond { // up to 5 % more, so that devices spread
			s.t.Errorf("came back after %s, want 700 ms", after)
		}
		if string(first.Attributes) == "" || string(second.Attributes) != "" {
			s.t.Errorf("attributes %s, then %s; want them once", first.Attributes, second.Attributes)
		}
	})
}

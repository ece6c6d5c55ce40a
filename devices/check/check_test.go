package check

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// checkFake runs the check against device in virtual time (synctest).
func checkFake(t *testing.T, device *fakeDevice) (found map[string]Finding, err error) {
	t.Helper()
	found = map[string]Finding{}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer func() {
			cancel()
			device.mu.Lock()
			device.stop()
			device.mu.Unlock()
			<-time.After(time.Minute) // until the goroutines of the device have ended
		}()
		device.run = newRun(ctx, Options{
			Token: "secret", Reboot: device.reboot, FirstToken: 1000, JoinWait: time.Minute,
			OnScenario: func(name string, left time.Duration) {
				t.Logf("%s %s, %s left", time.Now().Format("04:05"), name, left)
			},
			ShiftClock: func() error {
				device.mu.Lock()
				defer device.mu.Unlock()
				device.shift -= time.Hour
				return nil
			},
		}, "lab:9000")
		device.start(ctx)
		began := time.Now()
		err = device.run.play(ctx)
		for _, f := range device.run.findings {
			found[f.Rule] = f
		}
		t.Logf("took %s, %v", time.Since(began), err)
	})
	return found, err
}

// TestACorrectDevicePasses checks that a device without mistakes keeps every rule, with and without the optional parts of the protocol.
func TestACorrectDevicePasses(t *testing.T) {
	t.Parallel()
	for name, isPlain := range map[string]bool{"long poll": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := checkFake(t, &fakeDevice{isPlain: isPlain})
			if err != nil {
				t.Error(err)
			}
			for rule, f := range found {
				want := Passed
				switch {
				case rule == "journal-synced":
					want = NotCheckable
				case rule == "held" && isPlain:
					want = NotSeen
				}
				if f.State != want {
					t.Errorf("%s: %s in %q: %s\n%s", rule, f.State, f.Scenario, f.Found, f.Sent)
				}
			}
		})
	}
}

// TestADeviceWithoutTheLabTaskPasses checks a device that does not know the lab task and rejects all tasks. It breaks no rule, and the
// rules about work have the state NotSeen.
func TestADeviceWithoutTheLabTaskPasses(t *testing.T) {
	t.Parallel()
	found, err := checkFake(t, &fakeDevice{rejects: true})
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		if f.State == Failed {
			t.Errorf("%s: %s in %q: %s\n%s", f.Rule, f.State, f.Scenario, f.Found, f.Sent)
		}
	}
	for rule, want := range map[string]string{"lease-end": NotSeen, "cancel": NotSeen, "leave-first": NotSeen, "refused-keeps": Passed, "outcome-final": Passed, "reboot-journal": Passed, "late-grant": Passed} {
		if got := found[rule].State; got != want {
			t.Errorf("%s: %s, want %s", rule, got, want)
		}
	}
}

// TestASilentDeviceEndsTheCheck checks that a device that falls silent ends the check. The rules of scenarios that were not played have the
// state NotSeen.
func TestASilentDeviceEndsTheCheck(t *testing.T) {
	t.Parallel()
	found, err := checkFake(t, &fakeDevice{wrong: failsOnUnknown})
	if err == nil || !strings.HasPrefix(err.Error(), "the device sent no report for 1m0s; the scenario was: ") {
		t.Errorf("the check ended with %v", err)
	}
	if f := found["cancel"]; f.State != NotSeen {
		t.Errorf("cancel: %s", f.State)
	}
}

// TestEachMistakeIsFound checks that each mistake of a device fails the rule about this mistake.
func TestEachMistakeIsFound(t *testing.T) {
	t.Parallel()
	for wrong, rule := range map[mistake]string{
		forgetsAtReboot: "reboot-journal", forgetsOnRefusal: "refused-keeps", startsTwice: "started-once", startsOlder: "old-token",
		countsFromReply: "lease-start", usesWallClock: "clock", ignoresHeld: "held", ignoresCancel: "cancel", repeatsTooLarge: "too-large",
		ignoresRetryAfter: "refused-waits", failsOnUnknown: "unknown-ignored", repeatsWithoutPace: "paced",
		neverRenews: "renews", ignoresLease: "lease-end", startsUnsent: "unsent-report", reusesIDs: "report-id", keepsResults: "outcome-final",
		reportsBeforeLeaving: "leave-first", reportsLate: "report-at-once", spins: "pause", impatient: "no-reply",
		remembersTop: "reboot-restart", losesResultOnLost: "results-repeated", stopsOnRefusal: "refused-continues", dropsLargeReply: "large-reply",
		sendsNoToken: "credential", repeatsAtWork: "refused-waits",
	} {
		t.Run(string(wrong), func(t *testing.T) {
			t.Parallel()
			found, _ := checkFake(t, &fakeDevice{wrong: wrong}) // some devices fall silent
			var failed []string
			for _, f := range found {
				if f.State == Failed {
					failed = append(failed, f.Rule+" ("+f.Scenario+": "+f.Found+")")
				}
			}
			t.Log(strings.Join(failed, "\n"))
			if found[rule].State != Failed {
				t.Errorf("%s: %s", rule, found[rule].State)
			}
		})
	}
}

// TestAReportThatWasGivenUpMayArriveLate checks reports that arrive in the wrong order: first the result of a task, then a report in which the
// task runs. The device is correct if it closed the connection of the running report (1) to send the result on another one (2).
func TestAReportThatWasGivenUpMayArriveLate(t *testing.T) {
	t.Parallel()
	for conn, want := range map[int]string{1: Passed, 2: Failed} {
		synctest.Test(t, func(t *testing.T) {
			r := newRun(t.Context(), Options{}, "lab:9000")
			r.answer = func(*exchange) {} // the check does not acknowledge the result
			granted := r.newTask(taskPlan{})
			send := func(conn int, format string) {
				report := newExchange("d", fmt.Appendf(nil, format, granted.ID, granted.Token))
				report.conn = conn
				r.checkReport(report)
			}
			send(2, `{"id":"2","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`)
			send(conn, `{"id":"1","running":[{"task":%d,"token":%d}]}`)
			send(2, `{"id":"3","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`)
			for _, f := range r.findings {
				if f.Rule == "results-repeated" && f.State != want {
					t.Errorf("the late report came on connection %d: %s (%s), want %s", conn, f.State, f.Found, want)
				}
			}
		})
	}
}

// TestTheSentencesAreThoseOfTheContract checks that each finding quotes docs/protocol.md word by word.
func TestTheSentencesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/protocol.md")
	must.Succeed(t, err)
	text := strings.Join(strings.Fields(string(page)), " ")
	for _, rule := range newFindings(true) {
		if !strings.Contains(text, rule.Sentence) {
			t.Errorf("%s: docs/protocol.md lacks %q", rule.Rule, rule.Sentence)
		}
	}
}
